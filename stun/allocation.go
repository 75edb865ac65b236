package stun

import (
	"net/netip"

	"weft"
)

const (
	// nearby is how far apart in ports two mappings are at most that one allocator
	// gave one after the other while others took ports in between. One that gives
	// out more in a round trip is as good as random to whoever wants to know the next.
	nearby = 1024

	// Three differences that are the same are no chance, and nor are two that are
	// small: random ports show these once in 64,512² / 128 times.
	samesLeast, fewSames, smallStep = 3, 2, 64

	// randomLeast is how many differences, all unlike, it takes to call ports random:
	// of fewer, some may be jumps from one end of a sequence's range to the other.
	randomLeast = 3
)

// Allocated is what a NAT gave a socket.
type Allocated struct {
	Port   uint16         // of the socket
	Mapped netip.AddrPort // outside
}

// ClassifyAllocation tells from mappings that were made one after the other, without
// another of ours in between, how the NAT allocates ports, and by how much the next
// one will differ where that is sequential. Where several things could be, the answer
// is AllocationUnknown: a sequence on a busy NAT, too, of which the step is not seen.
func ClassifyAllocation(list []Allocated) (weft.Allocation, int16) {
	kept := 0
	for _, a := range list {
		if a.Port == a.Mapped.Port() {
			kept++
		}
	}
	// Where a neighbour has the port, a preserving NAT gives another.
	if kept >= 2 && 2*kept >= len(list) {
		return weft.PreservingAllocation, 0
	}
	// Several outside addresses may have a sequence together, or each its own.
	var together, own []int
	addrs := 0
	for i, a := range list {
		if i > 0 {
			together = append(together, apart(a, list[i-1]))
		}
		j := i - 1
		for j >= 0 && plainAddr(a.Mapped) != plainAddr(list[j].Mapped) {
			j--
		}
		if j < 0 {
			addrs++
			continue
		}
		own = append(own, apart(a, list[j]))
	}
	if step, ok := sequence(together, 1); ok {
		return weft.SequentialAllocation, step
	}
	if step, ok := sequence(own, addrs); ok {
		return weft.SequentialAllocation, step
	}
	if kept == 0 && random(together) && random(own) {
		return weft.RandomAllocation, 0
	}
	return weft.AllocationUnknown, 0
}

// apart is by how much a's port is above b's.
func apart(a, b Allocated) int { return int(a.Mapped.Port()) - int(b.Mapped.Port()) }

// sequence finds the step of an allocator that goes through the ports: the difference
// that most have, if the others are multiples of it, since somebody else took the
// ports in between. One of each range may go the other way: the jump from its end to
// its beginning.
func sequence(apart []int, ranges int) (int16, bool) {
	step, most := 0, 0
	for _, a := range apart {
		if n := count(apart, a); n > most || n == most && abs(a) < abs(step) {
			step, most = a, n
		}
	}
	if step == 0 {
		return 0, false
	}
	jumps := 0
	for _, a := range apart {
		switch {
		case a == step:
		case a == 0:
			return 0, false
		case (a > 0) != (step > 0):
			jumps++
		case a%step != 0 || abs(a) > nearby:
			return 0, false
		}
	}
	sure := most >= samesLeast || most >= fewSames && abs(step) <= smallStep
	return int16(step), sure && jumps <= ranges && 2*most >= len(apart)-jumps
}

// random reports whether no allocator that goes through the ports, however busy,
// gives such differences: no two are the same, and two at least are wide, or they go
// to and fro.
func random(apart []int) bool {
	wide, up, down := 0, 0, 0
	for _, a := range apart {
		if count(apart, a) > 1 {
			return false
		}
		switch {
		case abs(a) > nearby:
			wide++
		case a > 0:
			up++
		default:
			down++
		}
	}
	return len(apart) >= randomLeast && (wide >= 2 || wide == 1 && up > 0 && down > 0 || up > 1 && down > 1)
}

func count(list []int, n int) (times int) {
	for _, a := range list {
		if a == n {
			times++
		}
	}
	return times
}

func abs(n int) int { return max(n, -n) }
