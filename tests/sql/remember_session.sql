SELECT current_setting(%(param_1)s::VARCHAR) AS "TimeZone", current_setting(%(param_2)s::VARCHAR) AS lock_timeout;
