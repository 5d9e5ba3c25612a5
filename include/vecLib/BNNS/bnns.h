/* Lets sources that include <vecLib/BNNS/bnns.h> find the interface. */
#ifndef OPENBNNS_VECLIB_BNNS_H
#define OPENBNNS_VECLIB_BNNS_H

#include "../../openbnns/bnns.h"

#endif
