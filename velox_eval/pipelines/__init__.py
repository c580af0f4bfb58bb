"""Many runs, then one page: what several runs together say."""
