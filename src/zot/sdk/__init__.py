"""The in-process SDK: Runtime and BlockingRuntime."""
