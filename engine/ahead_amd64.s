#include "textflag.h"

// func near(p unsafe.Pointer)
TEXT ·near(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET
