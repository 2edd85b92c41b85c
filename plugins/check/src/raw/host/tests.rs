use std::sync::Barrier;

use super::*;

/// So many that two threads meet inside.
const ROUNDS: usize = 300;
const ROWS: usize = 2000;

#[test]
fn of_two_completions_at_the_same_time_one_is_the_second() {
    let (host, table) = RawHost::new(HostShape::Now).unwrap();
    // SAFETY: made just now, for ever.
    let (ctx, complete) = unsafe { ((*table).ctx as usize, (*table).complete.unwrap()) };
    let both = Barrier::new(2);
    let complete_one = |op| {
        // An answer that takes a while to read.
        let row = abi::Skill {
            struct_size: size_of_u32::<abi::Skill>(),
            ..wire::zeroed()
        };
        let rows = vec![row; ROWS];
        let page = abi::SkillPage {
            struct_size: size_of_u32::<abi::SkillPage>(),
            more: 0,
            skills: abi::List::of(&rows),
        };
        let completion = abi::Completion {
            struct_size: size_of_u32::<abi::Completion>(),
            status: abi::OK,
            error: std::ptr::null(),
            result: (&raw const page).cast(),
        };
        both.wait();
        // SAFETY: the host's own ctx, and a completion that lives until it is back.
        unsafe { complete(ctx as *mut c_void, op, &raw const completion) }
    };
    for round in 1..=ROUNDS {
        let op = host.begin("skill_list", Answer::Page, false);
        let mut codes = std::thread::scope(|scope| {
            let other = scope.spawn(|| complete_one(op));
            [complete_one(op), other.join().unwrap()]
        });
        codes.sort_unstable();
        assert_eq!(codes, [abi::E_STALE, abi::OK], "round {round}");
        assert_eq!(host.wrongs().len(), round);
    }
    assert_eq!(host.wrongs()[0], "skill_list was completed a second time");
}
