"""Learning agents: hot-key statistics, Q-tables, cooperation and their Ray and RLlib runtimes."""
