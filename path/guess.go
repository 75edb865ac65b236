package path

import "encoding/binary"

// The ports that are guessed at: below 1024, NATs give none to a socket whose own port is above (RFC 4787
// section 4.2.2).
const (
	firstPort = 1024
	lastPort  = 1<<16 - 1
)

// hintedWindow is how many ports in order are tried of a NAT that gives them so: as many as there are sockets,
// and some for what others connected meanwhile.
const hintedWindow = MaxSockets + 64

// A guesser says which ports of the opener's to try, in order and none twice: those that it named, those that
// its NAT gives in order, and then any at random.
type guesser struct {
	named      []uint16
	next, step int // of ports in order; step zero: none
	ordered    int // of them, how many are left
	tried      [(lastPort + 1) / 64]uint64
	left       int // untried
	random     [64]byte
	unused     int // of random
}

func newGuesser(named []uint16, next uint16, step int16) *guesser {
	g := &guesser{named: named, next: int(next), step: int(step), left: lastPort - firstPort + 1}
	if next != 0 && step != 0 {
		g.ordered = hintedWindow
	}
	return g
}

// port is the next guess; zero when all have been tried.
func (g *guesser) port(fill func([]byte)) uint16 {
	for len(g.named) > 0 {
		p := g.named[0]
		if g.named = g.named[1:]; g.try(int(p)) {
			return p
		}
	}
	for ; g.ordered > 0; g.ordered-- {
		p := g.next
		if g.next = int(inOrder(uint16(g.next), g.step, 1)); g.try(p) {
			return uint16(p)
		}
	}
	for g.left > 0 {
		if g.unused == 0 {
			fill(g.random[:])
			g.unused = len(g.random)
		}
		g.unused -= 2
		if p := int(binary.BigEndian.Uint16(g.random[g.unused:])); g.try(p) {
			return uint16(p)
		}
	}
	return 0
}

// try takes a port that was not tried yet.
func (g *guesser) try(p int) bool {
	if p < firstPort || g.tried[p/64]&(1<<(p%64)) != 0 {
		return false
	}
	g.tried[p/64] |= 1 << (p % 64)
	g.left--
	return true
}

// inOrder is the port so many steps after one, of a NAT that gives them in order and begins again at the other
// end.
func inOrder(port uint16, step, n int) uint16 {
	const span = lastPort - firstPort + 1
	p := (int(port) - firstPort + step*n) % span
	if p < 0 {
		p += span
	}
	return uint16(firstPort + p)
}
