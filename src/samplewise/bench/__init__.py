"""The benchmark: every method and peer is checked against the truth, then timed and weighed, in processes of their own.

arguments, commands     the command line (light), and what its subcommands do
cases, workloads        what is measured: sizes without torch, tensors with it
truth                   loss and gradients in float64 for sizes whose 4-D logits do not fit
methods, baseline, yardsticks, peers
                        what measures itself on a workload
worker, memory, telemetry, protocol
                        the process that runs one method on one case, and how it is spoken to
runner, machine, records
                        the process that starts workers in turn, looks at the machine and writes one JSON line a measurement
report                  tables, plots, one HTML page, and figures put between markers in the documentation
"""
