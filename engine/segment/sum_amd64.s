#include "textflag.h"

// func sumBlocks(p *byte, blocks int) uint64
// Adds up the 32-bit words of blocks of 128 bytes, in the machine's order, in lanes of 64 bits: of so few words none overflows.
TEXT ·sumBlocks(SB), NOSPLIT, $0-24
	MOVQ  p+0(FP), SI
	MOVQ  blocks+8(FP), CX
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3

loop:
	VPMOVZXDQ (SI), Y4
	VPMOVZXDQ 16(SI), Y5
	VPMOVZXDQ 32(SI), Y6
	VPMOVZXDQ 48(SI), Y7
	VPADDQ    Y4, Y0, Y0
	VPADDQ    Y5, Y1, Y1
	VPADDQ    Y6, Y2, Y2
	VPADDQ    Y7, Y3, Y3
	VPMOVZXDQ 64(SI), Y4
	VPMOVZXDQ 80(SI), Y5
	VPMOVZXDQ 96(SI), Y6
	VPMOVZXDQ 112(SI), Y7
	VPADDQ    Y4, Y0, Y0
	VPADDQ    Y5, Y1, Y1
	VPADDQ    Y6, Y2, Y2
	VPADDQ    Y7, Y3, Y3
	ADDQ      $128, SI
	DECQ      CX
	JNZ       loop

	VPADDQ       Y1, Y0, Y0
	VPADDQ       Y3, Y2, Y2
	VPADDQ       Y2, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPADDQ       X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPADDQ       X1, X0, X0
	VMOVQ        X0, AX
	VZEROUPPER
	MOVQ         AX, ret+16(FP)
	RET
