SELECT current_database() AS current_database_1;
