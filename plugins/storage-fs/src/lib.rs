//! The bundled plugin storage-fs.
