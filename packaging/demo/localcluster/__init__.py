"""A real Slurm cluster on one machine, in namespaces, for the demonstration and the tests.

`Cluster.up()` brings one up, `Cluster.attach()` connects to a running one; the program `cluster` in the parent folder
is the command line.
"""

from .cluster import Cluster as Cluster
from .cluster import ClusterState as ClusterState
from .cluster import running as running
from .cluster import take_down as take_down
from .errors import ClusterError as ClusterError
from .errors import CommandFailed as CommandFailed
from .errors import Misuse as Misuse
from .errors import NotDone as NotDone
from .records import RELEASES as RELEASES
