//! What runs inside every sandbox, as files to embed.
