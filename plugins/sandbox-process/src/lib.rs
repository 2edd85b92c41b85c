//! The bundled plugin sandbox-process.
