"""The offline geometry studies of the seeds on our own caches, with the controls that decide what they prove."""
