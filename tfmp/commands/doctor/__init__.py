"""``tfmp doctor``: checks this machine and its connection to the cluster, one line per check, with fixes."""
