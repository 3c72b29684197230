"""Tests on virtual nodes: several hosts on this machine, with networks and disks of their own."""
