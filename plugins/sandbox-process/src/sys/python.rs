//! The door to CPython, for the code that a zygote loads as an extension module.
//!
//! The gateway loads the same file, and no Python is there: so nothing of CPython is linked. What is needed is looked up
//! by name when a Python loads the module, and a few functions of the stable interface are all of it.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::OnceLock;

type Object = c_void;
type Method = unsafe extern "C" fn(*mut Object, *mut Object) -> *mut Object;

/// `PyMethodDef`
#[repr(C)]
struct MethodDef {
    name: *const c_char,
    method: Option<Method>,
    flags: c_int,
    doc: *const c_char,
}

/// `PyModuleDef` as it is in every version with a global interpreter lock: object head, init, index, copy.
#[repr(C)]
struct ModuleDef {
    references: isize,
    kind: *mut c_void,
    init: *const c_void,
    index: isize,
    copy: *mut c_void,
    name: *const c_char,
    doc: *const c_char,
    size: isize,
    methods: *mut MethodDef,
    rest: [*mut c_void; 4],
}

/// What an object begins with, in such a version. One without the lock has more there, and so has one that traces references.
pub(crate) const OBJECT_HEAD_BYTES: u64 = std::mem::offset_of!(ModuleDef, init) as u64;

const METH_NOARGS: c_int = 4;
/// `PYTHON_ABI_VERSION`: of the stable interface.
const ABI_VERSION: c_int = 3;

struct Python {
    before_fork: unsafe extern "C" fn(),
    after_fork_parent: unsafe extern "C" fn(),
    after_fork_child: unsafe extern "C" fn(),
    create_module: unsafe extern "C" fn(*mut ModuleDef, c_int) -> *mut Object,
    long: unsafe extern "C" fn(c_long) -> *mut Object,
}

static PYTHON: OnceLock<Python> = OnceLock::new();

/// The address of a function of the program that has loaded this file.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is NUL-terminated.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn look_up() -> Option<Python> {
    let before = symbol(c"PyOS_BeforeFork")?;
    let parent = symbol(c"PyOS_AfterFork_Parent")?;
    let child = symbol(c"PyOS_AfterFork_Child")?;
    let module = symbol(c"PyModule_Create2")?;
    let long = symbol(c"PyLong_FromLong")?;
    // SAFETY: these names have had these signatures since Python 3.7, and they are documented.
    Some(unsafe {
        Python {
            before_fork: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(before),
            after_fork_parent: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(parent),
            after_fork_child: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(child),
            create_module: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut ModuleDef, c_int) -> *mut Object,
            >(module),
            long: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_long) -> *mut Object>(
                long,
            ),
        }
    })
}

/// What CPython wants done before a fork: its import lock is taken. Nothing outside a Python.
pub(crate) fn before_fork() {
    if let Some(python) = PYTHON.get() {
        // SAFETY: called by the thread that holds the interpreter lock, as fork() of the module `os` does.
        unsafe { (python.before_fork)() };
    }
}

/// What it wants done afterwards in the process that goes on.
pub(crate) fn after_fork_parent() {
    if let Some(python) = PYTHON.get() {
        // SAFETY: as above; follows `before_fork`.
        unsafe { (python.after_fork_parent)() };
    }
}

/// What it wants done in the new process: locks, thread ids, hooks.
pub(crate) fn after_fork_child() {
    if let Some(python) = PYTHON.get() {
        // SAFETY: as above, in the new process, whose one thread is the copy of the one that held the lock.
        unsafe { (python.after_fork_child)() };
    }
}

/// A function of the module as Python sees it: no argument, an int back. A panic ends the process: what it was doing is
/// half done, and a child in that state must not run anything.
fn called(function: fn() -> c_long) -> *mut Object {
    let Ok(value) = std::panic::catch_unwind(function) else {
        super::exit_now(124)
    };
    match PYTHON.get() {
        // SAFETY: the interpreter lock is held: Python has called.
        Some(python) => unsafe { (python.long)(value) },
        None => super::exit_now(124),
    }
}

unsafe extern "C" fn tend(_module: *mut Object, _none: *mut Object) -> *mut Object {
    called(crate::zygote::tend)
}

unsafe extern "C" fn is_idle(_module: *mut Object, _none: *mut Object) -> *mut Object {
    called(crate::zygote::is_idle)
}

unsafe extern "C" fn activate(_module: *mut Object, _none: *mut Object) -> *mut Object {
    called(crate::zygote::activate)
}

/// Python's way into the module `_skillgate_zygote`.
///
/// # Safety
///
/// For a Python that imports the module, with its interpreter lock held.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn PyInit__skillgate_zygote() -> *mut Object {
    let Some(python) = look_up() else {
        return std::ptr::null_mut();
    };
    let python = PYTHON.get_or_init(|| python);
    let method = |name: &'static CStr, method| MethodDef {
        name: name.as_ptr(),
        method,
        flags: METH_NOARGS,
        doc: std::ptr::null(),
    };
    let end = MethodDef {
        name: std::ptr::null(),
        method: None,
        flags: 0,
        doc: std::ptr::null(),
    };
    let methods = Box::leak(Box::new([
        method(c"tend", Some(tend as Method)),
        method(c"is_idle", Some(is_idle as Method)),
        method(c"activate", Some(activate as Method)),
        end,
    ]));
    let definition = Box::leak(Box::new(ModuleDef {
        references: 1,
        kind: std::ptr::null_mut(),
        init: std::ptr::null(),
        index: 0,
        copy: std::ptr::null_mut(),
        name: c"_skillgate_zygote".as_ptr(),
        doc: std::ptr::null(),
        size: -1,
        methods: methods.as_mut_ptr(),
        rest: [std::ptr::null_mut(); 4],
    }));
    // SAFETY: the definition and its methods live for ever; the interpreter lock is held.
    unsafe { (python.create_module)(definition, ABI_VERSION) }
}
