"""Everything that runs in the processes of a broker: one package for each role, and the layers below them."""
