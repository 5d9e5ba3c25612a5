/* Lets sources written for Accelerate find the BNNS interface under the include they already use, and
 * the standard headers that come with it there. Nothing else of Accelerate is provided. */
#ifndef OPENBNNS_ACCELERATE_H
#define OPENBNNS_ACCELERATE_H

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../openbnns/bnns.h"

#endif
