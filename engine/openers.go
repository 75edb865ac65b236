package engine

import (
	"sync"

	"weft/engine/segment"
	"weft/wireguard"
)

// keptOpeners is how many openers are kept that nobody has, each with 64 or 128 KiB: as many as sockets and streams are
// worked on at once, which is hardly more than there are processors.
const keptOpeners = 8

// An openerPool has the openers that nobody has. It hands out the one that was given back last: its memory is in a
// cache, and there are no more of them than were ever in use at once.
type openerPool struct {
	mu   sync.Mutex
	free []*opener
}

// opener takes an opener, for putOpener to give back.
func (e *Engine) opener() *opener {
	p := &e.openers
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		o := p.free[n-1]
		p.free = p.free[:n-1]
		return o
	}
	return &opener{e: e, sieve: wireguard.NewSieve(e.public), merge: segment.NewMerger(openSpare)}
}

// putOpener gives an opener back. What the device answers to a packet that came alone is sent before.
func (e *Engine) putOpener(o *opener) {
	if o.wrote == 1 {
		o.to.answer(o.now)
	}
	o.wrote = 0
	p := &e.openers
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < keptOpeners {
		p.free = append(p.free, o)
	}
}
