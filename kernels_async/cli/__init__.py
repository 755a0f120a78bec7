"""The command line `kernels-async`; it takes the extra `cli`.

With `--json` a command writes one document: `command`, `exit_code`, and either `error`, of
`kind` and `message`, or these::

    doctor          findings [group, check, status, text, remedy], counts [ok, note,
                    warning, problem]
    build           manifest, directory, targets [target, kernels, skipped, compiled,
                    from_disk, failed, seconds, compile_seconds, saved_seconds, artifacts,
                    failures]
    explain         first, second, same, differences [entry, first, second]
    report          output, trace, kernels, failed, changes [counts, kernels, everywhere]
    cache ls        directory, artifacts [key, symbol, defines, target, source, size,
                    compile_seconds, made, used, toolchain], bytes, damaged
    cache show      key, path, symbol, entry, target, toolchain, bytes, output_digest,
                    compile_seconds, entries, resources, max_threads_per_block, occupancy,
                    diagnostics
    cache verify    directory, sound, damaged, unreadable
    cache prune     directory, removed, freed_bytes, left_bytes
    cache clear     directory, removed, freed_bytes, left_bytes
    cache export    directory, file, exported, bytes, damaged
    cache import    directory, file, imported, present, refused [key, reason]

Sizes are in bytes, times in seconds, and moments in seconds since 1970.
"""
