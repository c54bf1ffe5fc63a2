"""The instructions of IFEval and IFBench as rows of tables, one module for each family, with shared text parsing."""
