// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The same programs, of which that in agent.bpf.c which opens tunnels is attached at traffic
 * control.
 */
#define OPENS_AT_TC

#include "agent.bpf.c"
