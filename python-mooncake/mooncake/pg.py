"""mooncake.pg is not part of this package; importing it says which one has it."""

from mooncake._absent import refuse

raise refuse("mooncake.pg")
