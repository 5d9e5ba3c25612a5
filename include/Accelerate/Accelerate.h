/* Lets sources written for Accelerate find the BNNS interface under the include they already use.
 * Nothing else of Accelerate is provided. */
#ifndef OPENBNNS_ACCELERATE_H
#define OPENBNNS_ACCELERATE_H

#include "../openbnns/bnns.h"

#endif
