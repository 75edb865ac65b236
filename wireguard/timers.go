package wireguard

import (
	"container/heap"
	"time"
)

// A timers is the peers that have something to do, in a heap by when. A peer that is idle is not in it.
type timers []*Peer

// set changes when something is due for a peer; zero: never.
func (t *timers) set(p *Peer, due time.Time) {
	was := p.place >= 0
	p.due = due
	switch {
	case was && due.IsZero():
		heap.Remove(t, p.place)
	case was:
		heap.Fix(t, p.place)
	case !due.IsZero():
		heap.Push(t, p)
	}
}

// The methods of heap.Interface.

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].due.Before(t[j].due) }

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].place, t[j].place = i, j
}

// Push adds a peer behind the last.
func (t *timers) Push(x any) {
	p := x.(*Peer)
	p.place = len(*t)
	*t = append(*t, p)
}

// Pop takes the last out.
func (t *timers) Pop() any {
	n := len(*t) - 1
	p := (*t)[n]
	(*t)[n] = nil
	*t, p.place = (*t)[:n], -1
	return p
}
