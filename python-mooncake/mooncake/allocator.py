"""mooncake.allocator is not part of this package; importing it says which one has it."""

from mooncake._absent import refuse

raise refuse("mooncake.allocator", "it allocates memory for transports that the store does not have here")
