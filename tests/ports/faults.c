/* Every allocation of every family fails once: see faults.h. */
#define FAULTS
#include "allocations.c"
