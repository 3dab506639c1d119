"""Breakages of the compiled part: text that guesses. Their tests need seekpoint-native (``make native``)."""

from __future__ import annotations

from mutants.breakages import breakage

BATCHES = "tests/native/test_batches.py"
SAME = f"{BATCHES}::test_tables_and_dead_letters_are_the_same_with_and_without"
FUZZ = "tests/native/test_fuzz.py"
CHECKS, ENCODER, KINDS = (f"sinks/native/{name}.py" for name in ("driver_checks", "encoder", "kinds"))

NATIVE_TEXT = (
    breakage(
        "native text guesses what a value with a constraint may be",
        KINDS,
        "return any(getattr(type_, name) is not None for name in type_.__struct_fields__ if name not in inner)",
        "return False and bool(inner)",
        f"{BATCHES}::test_a_broken_value_is_a_dead_letter_and_its_neighbours_are_rows",
    ),
    breakage(
        "native text guesses which columns are of json",
        CHECKS,
        "    if json_columns != layout.json:\n",
        "    if False:\n",
        f"{BATCHES}::test_text_for_a_column_of_json_is_dumped_as_json",
    ),
    breakage(
        "native text guesses how the program's psycopg writes a type",
        CHECKS,
        "    return all(_dumper(adapters, one) is _dumper(_unchanged(), one) for one in types - {dict})",
        "    return True",
        f"{BATCHES}::test_a_dumper_of_the_programs_own_is_used",
    ),
    breakage(
        "native text guesses how the program's psycopg writes JSON",
        CHECKS,
        "        types |= {Json}\n",
        "",
        f"{BATCHES}::test_a_dumper_of_the_programs_own_is_used_for_json",
    ),
    breakage(
        "native text guesses how values of any type become JSON",
        KINDS,
        "(str, int, float, bool) if is_any else ()",
        "()",
        f"{BATCHES}::test_a_dumper_of_the_programs_own_is_used_for_json",
    ),
    breakage(
        "native text guesses that an attribute is the field",
        KINDS,
        "or not is_plain or",
        "or",
        f"{BATCHES}::test_a_property_in_the_place_of_a_field_is_the_rows_value",
    ),
    breakage(
        "native text guesses how bytea is escaped",
        CHECKS,
        'if bytes in types and Escaping(connection.pgconn).escape_bytea(b"\\0") != b"\\\\x00":',
        "if False:",
        f"{BATCHES}::test_bytes_where_strings_take_backslashes_as_escapes",
    ),
    breakage(
        "native text guesses that a list of anything is an array",
        KINDS,
        "        return item and Kind(",
        '        item = item or ("str", str)\n        return item and Kind(',
        f"{BATCHES}::test_a_list_of_mixed_values_is_pythons",
    ),
    breakage(
        "native text guesses that a default has nothing to escape",
        ENCODER,
        'else re.sub(rb"[\\b\\t\\n\\v\\f\\r\\\\]", _escape, bytes(dumped))',
        "else bytes(dumped)",
        f"{FUZZ}::test_the_compiled_text_is_the_text_of_msgspec_and_psycopg",
    ),
    breakage(
        "a null key is native text",
        ENCODER,
        "kind.nullable and field.name not in self._required",
        "kind.nullable",
        f"{BATCHES}::test_an_upsert_has_the_same_rows",
    ),
    breakage(
        "a missing key is native text",
        ENCODER,
        'return None if field.name in self._required else b"\\\\N"',
        'return b"\\\\N"',
        f"{BATCHES}::test_an_upsert_has_the_same_rows",
    ),
    breakage(
        "a value that the compiled part leaves has no row",
        ENCODER,
        "                parts.append(rows)\n",
        "",
        f"{BATCHES}::test_a_value_that_is_left_to_python_keeps_its_place",
    ),
    breakage(
        "rows of text are not counted and a refused row names another record",
        "sinks/copy.py",
        "                    self._line += part[1]\n",
        "",
        f"{BATCHES}::test_a_row_that_cannot_be_written_names_its_own_place",
    ),
)
