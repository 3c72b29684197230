"""Loading: what `phalanx bench io` and `phalanx study io` found."""
