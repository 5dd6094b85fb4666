"""mooncake.ep is not part of this package; importing it names the package that has it."""

from mooncake._absent import refuse

raise refuse("mooncake.ep")
