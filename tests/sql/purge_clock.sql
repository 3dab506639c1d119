SELECT clock_timestamp() AS clock_timestamp_1;
