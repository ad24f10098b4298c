"""The driver: register a run, fold its journal, run the phase for its state, append its event."""
