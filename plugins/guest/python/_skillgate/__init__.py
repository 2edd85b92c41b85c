"""What turns a job frame into a result frame. Not for skills: they use the package `runtime`."""
