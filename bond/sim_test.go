package bond_test

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	seeds   = flag.Int("bond.seeds", 0, "how many seeds each simulated case is run with; 0: a few")
	only    = flag.Int("bond.seed", -1, "the one seed of drawn links that is run")
	verbose = flag.Bool("bond.trace", false, "print what simulated paths do, ten times a second")
)

// A world is virtual time: what is to happen, in order. Things of the same time happen in the order in which they were planned.
type world struct {
	t    testing.TB
	now  time.Duration
	rnd  *rand.Rand
	plan []event // a heap
	seq  uint64
}

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func newWorld(t testing.TB, seed uint64) *world {
	return &world{t: t, now: time.Second, rnd: rand.New(rand.NewPCG(seed, 0x6a09e667f3bcc908))}
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// at plans something.
func (w *world) at(t time.Duration, do func()) {
	w.seq++
	w.plan = append(w.plan, event{max(t, w.now), w.seq, do})
	i := len(w.plan) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !w.plan[i].before(&w.plan[up]) {
			break
		}
		w.plan[i], w.plan[up] = w.plan[up], w.plan[i]
		i = up
	}
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now+d, do) }

// every plans something that is done again and again.
func (w *world) every(d time.Duration, do func()) {
	w.after(d, func() { do(); w.every(d, do) })
}

// run lets time pass.
func (w *world) run(until time.Duration) {
	for len(w.plan) > 0 && w.plan[0].at <= until {
		e := w.plan[0]
		last := len(w.plan) - 1
		w.plan[0] = w.plan[last]
		w.plan[last] = event{}
		w.plan = w.plan[:last]
		for i := 0; ; {
			best := i
			for c := 4*i + 1; c <= 4*i+4 && c < last; c++ {
				if w.plan[c].before(&w.plan[best]) {
					best = c
				}
			}
			if best == i {
				break
			}
			w.plan[i], w.plan[best] = w.plan[best], w.plan[i]
			i = best
		}
		w.now = e.at
		e.do()
	}
	w.now = until
}

// A pipe is one direction of a link: a queue of limited length that drops at its tail, a line of some rate, and a way of some length.
// Its packets stay in order.
type pipe struct {
	w      *world
	rate   float64       // bytes/s; 0: any
	delay  time.Duration // one way
	jitter time.Duration // at most so much more, evenly distributed
	loss   float64       // of each packet, at random
	limit  int           // bytes that wait
	dead   bool          // takes all, and brings nothing

	waiting []parcel
	head    int
	bytes   int
	busy    bool
	last    time.Duration // something arrives

	passed, dropped, lost int
	carried               int // bytes
}

// leastJitter is what machines on the way make of any delay.
const leastJitter = 300 * time.Microsecond

type parcel struct {
	size   int
	arrive func()
}

func (p *pipe) send(size int, arrive func()) {
	if p.bytes+size > p.limit && p.busy {
		p.dropped++
		return
	}
	p.waiting = append(p.waiting, parcel{size, arrive})
	p.bytes += size
	if !p.busy {
		p.next()
	}
}

func (p *pipe) next() {
	if p.head == len(p.waiting) {
		p.waiting, p.head, p.busy = p.waiting[:0], 0, false
		return
	}
	p.busy = true
	x := p.waiting[p.head]
	p.waiting[p.head] = parcel{}
	if p.head++; p.head > 1024 && p.head*2 > len(p.waiting) {
		p.waiting = append(p.waiting[:0], p.waiting[p.head:]...)
		p.head = 0
	}
	took := time.Duration(0)
	if p.rate > 0 {
		took = time.Duration(float64(x.size) / p.rate * float64(time.Second))
	}
	p.w.after(took, func() {
		p.bytes -= x.size
		switch {
		case p.dead || p.loss > 0 && p.w.rnd.Float64() < p.loss:
			p.lost++
		default:
			p.passed++
			p.carried += x.size
			at := p.w.now + p.delay + time.Duration(p.w.rnd.Int64N(int64(p.jitter+leastJitter)))
			p.last = max(p.last, at)
			p.w.at(p.last, x.arrive)
		}
		p.next()
	})
}

// A link joins two hosts.
type link struct{ there, back *pipe }

// A line is what a link is like, both ways.
type line struct {
	mbit   float64
	rtt    time.Duration
	jitter time.Duration // of one way
	loss   float64
	queue  time.Duration // how long the tail waits at that rate; 0: deepQueue
}

// deepQueue is what routers of access links have.
const deepQueue = 100 * time.Millisecond

func (l line) pipe(w *world) *pipe {
	p := &pipe{w: w, delay: l.rtt / 2, jitter: l.jitter, loss: l.loss}
	q := l.queue
	if q == 0 {
		q = deepQueue
	}
	p.rate = l.mbit * 1e6 / 8
	p.limit = max(int(p.rate*q.Seconds()), 20*1514)
	return p
}

func (l line) link(w *world) *link { return &link{l.pipe(w), l.pipe(w)} }

// set changes the rate of both directions.
func (l *link) set(mbit float64) { l.there.rate, l.back.rate = mbit*1e6/8, mbit*1e6/8 }

// dead makes a silent black hole of both directions, or a link again.
func (l *link) dead(yes bool) { l.there.dead, l.back.dead = yes, yes }
