SELECT set_config(%(param_1)s::VARCHAR, %(timeout)s::VARCHAR, true) AS set_config_1;
