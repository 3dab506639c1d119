SELECT set_config(%(param_1)s::VARCHAR, %(idle)s::VARCHAR, true) AS set_config_1;
