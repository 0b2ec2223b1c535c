"""How the elastic runtime scales: one etcd for many agents, one Job of many pods."""
