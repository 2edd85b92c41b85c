//! What a skill is: names, versions, paths, manifests, front matter; pure parsing.
