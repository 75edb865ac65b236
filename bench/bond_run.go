package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/lab/router"
	"weft/node"
)

// A bondSubject is what carries the flow.
type bondSubject string

const (
	bonded   bondSubject = "weft"        // all links of the case
	single   bondSubject = "weft, alone" // the same binary with one link
	mptcp    bondSubject = "mptcp"       // the kernel's, over the same links, without a tunnel
	plainTCP bondSubject = "tcp, alone"  // without a tunnel, with one link
)

func (s bondSubject) isWeft() bool { return s == bonded || s == single }

// A bondLoad is what is sent.
type bondLoad int

const (
	loadTCP    bondLoad = iota // one connection, as much as it can
	loadUDP                    // datagrams at a constant rate
	loadBeside                 // one connection, and by the first link one of plain TCP
	loadShort                  // short transfers one after the other
)

// A bondUnit is one run of one subject: what a world does for a while.
type bondUnit struct {
	c       *bondCase
	subject bondSubject
	links   []BondLink
	metrics []int
	mode    string // of bonding; "": the default
	out     bool   // from the host with many links, or to it
	round   int
	length  time.Duration
	warm    time.Duration // of that, what does not count
	load    bondLoad
	mbit    float64 // offered, of datagrams' payload
	script  []bondEvent
	once    bool // and not in every round, unless all is wanted
	paced   bool // by the flow's congestion control: BBR
}

// A bondEvent happens to a link while a unit runs.
type bondEvent struct {
	at   time.Duration
	what bondHappening
	link int
	to   BondLink // of change
}

type bondHappening string

const (
	goesDark    bondHappening = "dark"          // silent: nothing passes, and nobody is told
	isLight     bondHappening = "light"         // passes again
	goesDarkOut bondHappening = "dark outwards" // silent, but for what comes to the host
	goesDarkIn  bondHappening = "dark inwards"
	goesDown    bondHappening = "down" // the interface goes, and the kernel says so
	comesUp     bondHappening = "up"
	isChanged   bondHappening = "change"
	turnsOff    bondHappening = "bonding off" // of both nodes
	turnsOn     bondHappening = "bonding on"
)

func (u *bondUnit) direction() string {
	if u.out {
		return "out"
	}
	return "in"
}

// setBonding sets what weft is to do with several links.
func setBonding(ctx context.Context, mode string, n interface {
	Settings(context.Context) (node.Settings, error)
	SetSettings(context.Context, node.Settings) error
}) error {
	s, err := n.Settings(ctx)
	if err != nil {
		return err
	}
	if s.Bond == mode {
		return nil
	}
	s.Bond = mode
	return n.SetSettings(ctx, s)
}

// A BondRun is what one unit gave.
type BondRun struct {
	Case      string      `json:"case"`
	Subject   bondSubject `json:"subject"`
	Control   string      `json:"congestion_control"` // of the flow inside
	Links     []BondLink  `json:"links"`
	Mode      string      `json:"mode,omitempty"`
	Direction string      `json:"direction"` // out: from the host with many links
	Round     int         `json:"round"`
	Seconds   float64     `json:"seconds"` // that count, after the warm-up
	Warm      float64     `json:"warm_up_seconds"`

	Mbit    float64       `json:"mbit"` // what arrived of the payload a second, of the time that counts
	StallMS float64       `json:"longest_stall_ms"`
	TCP     *TCPFigures   `json:"tcp,omitempty"`
	UDP     *UDPFigures   `json:"udp,omitempty"`
	Order   *orderCounts  `json:"order,omitempty"`
	Beside  float64       `json:"beside_mbit,omitempty"` // what the other connection got
	Short   []float64     `json:"short_ms,omitempty"`    // how long short transfers took
	Events  []BondHappens `json:"events,omitempty"`
	Problem string        `json:"problem,omitempty"`
	BondConditions

	Carried []uint64 `json:"bytes_by_link"`       // of all that went over it, of the time that counts
	Dropped []uint64 `json:"queue_drops_by_link"` // packets, likewise

	Paths    []PathChange       `json:"path_changes,omitempty"` // what weft says of its paths, at either end, meanwhile
	Received *weft.BondReceived `json:"received,omitempty"`     // how the receiving end put packets in order, since it began

	Step    float64   `json:"step_seconds"`
	Curve   []float64 `json:"mbit_over_time"`                 // of the payload
	ByLink  [][]int   `json:"kbit_over_time_by_link"`         // of all that is on a link, by link
	Latency []float64 `json:"latency_ms_over_time,omitempty"` // the longest
}

// PathChange is a change of a path's state as weft tells it.
type PathChange struct {
	At   float64 `json:"at_seconds"`
	Node string  `json:"node"` // a or b
	weft.PathEvent
}

// ask has weft tell what became of its paths since the unit began.
func (w *bondWorld) ask(ctx context.Context, u *bondUnit, x *BondRun, began time.Time) error {
	if u.subject != bonded {
		return nil
	}
	for i, n := range w.nodes {
		p, err := n.Paths(ctx, w.nodes[1-i].Name)
		if err != nil {
			return err
		}
		for _, e := range p.Events {
			if at := e.At.Sub(began).Seconds(); at > 0 && at < u.length.Seconds() {
				x.Paths = append(x.Paths, PathChange{At: round(at), Node: []string{"a", "b"}[i], PathEvent: e})
			}
		}
		if u.out == (i == 1) {
			x.Received = &p.Bond.Received
		}
	}
	return nil
}

// BondHappens is an event and what it did.
type BondHappens struct {
	At   float64       `json:"at_seconds"`
	What bondHappening `json:"what"`
	Link int           `json:"link"`
	To   string        `json:"to,omitempty"`
	*Disturbance
}

// carried is what has gone over each of the unit's links so far, in its direction, once it was through the queue.
func (w *bondWorld) carried(u *bondUnit) (list []router.WireCounts, err error) {
	var routers []*netns.Router
	for i := range u.links {
		routers = append(routers, w.legs[i].router)
	}
	counts, err := w.net.LinkCounts(routers)
	for _, c := range counts {
		if u.out {
			list = append(list, c[0])
		} else {
			list = append(list, c[1])
		}
	}
	return list, err
}

// run does what a unit is about in a world that is prepared for it. All units of a batch begin at once.
func (w *bondWorld) run(ctx context.Context, u *bondUnit) (*BondRun, error) {
	x := &BondRun{Case: u.c.name, Subject: u.subject, Links: u.links, Mode: u.mode, Direction: u.direction(), Round: u.round,
		Seconds: (u.length - u.warm).Seconds(), Warm: u.warm.Seconds(), Step: sampleEvery.Seconds()}
	ctx, cancel := context.WithTimeout(ctx, u.length+30*time.Second)
	defer cancel()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	var err error
	switch u.load {
	case loadUDP:
		err = w.runUDP(loading, u, x, stop)
	case loadShort:
		err = w.runShort(loading, u, x)
	default:
		err = w.runTCP(loading, u, x)
	}
	return x, err
}

// dialling is how the unit's connection is made.
func (w *bondWorld) dialling(u *bondUnit) dialling {
	switch u.subject {
	case mptcp:
		return dialling{to: w.b.Addr(), port: bondPort, multipath: true}
	case plainTCP:
		return dialling{from: w.legs[0].addr, to: w.b.Addr(), port: bondPort}
	}
	return dialling{to: w.addrs[1], port: bondPort, eager: len(u.links) == 0}
}

func (w *bondWorld) runTCP(ctx context.Context, u *bondUnit, x *BondRun) error {
	var order *orderMeter
	if u.subject.isWeft() {
		receiver := w.a
		if u.out {
			receiver = w.b
		}
		var err error
		if order, err = watchOrder(receiver, "weft0", bondPort); err != nil {
			return err
		}
		defer order.close()
	}
	f, err := w.startTCP(ctx, w.dialling(u), u.out)
	if err != nil {
		return err
	}
	defer f.close()
	var other *tcpFlow
	if u.load == loadBeside {
		if other, err = w.startTCP(ctx, dialling{from: w.legs[0].addr, to: w.b.Addr(), port: bondPort + 1}, u.out); err != nil {
			return err
		}
		defer other.close()
	}
	meter := &tcpMeter{flow: f}
	var at, atOther [2]int64
	began := time.Now()
	events := w.follow(ctx, u, x, began)
	came := order.follow()
	err = w.sample(ctx, u, x, began, func(step int, now time.Duration) int64 {
		got := f.received.Load()
		came.look(now)
		switch {
		case now < u.warm:
			meter.look(false)
			f.stall.take(time.Now())
			if order != nil {
				order.reset()
			}
			at[0] = got
			if other != nil {
				atOther[0] = other.received.Load()
			}
		default:
			meter.look(true)
			at[1] = got
			if other != nil {
				atOther[1] = other.received.Load()
			}
		}
		return got
	})
	stall, _ := f.stall.take(time.Now())
	x.StallMS = float64(stall) / float64(time.Millisecond)
	if x.TCP = meter.figures(); x.TCP != nil {
		x.TCP.Came = came.mbit
	}
	if order != nil {
		c := order.reset()
		x.Order = &c
	}
	x.Mbit = float64(at[1]-at[0]) * 8 / 1e6 / x.Seconds
	if other != nil {
		x.Beside = float64(atOther[1]-atOther[0]) * 8 / 1e6 / x.Seconds
	}
	if err := errors.Join(err, <-events); err != nil {
		return err
	}
	return w.ask(ctx, u, x, began)
}

func (w *bondWorld) runUDP(ctx context.Context, u *bondUnit, x *BondRun, stop func()) error {
	f, err := w.startUDP(ctx, udpTo{out: u.out, port: bondPort, bits: u.mbit * 1e6})
	if err != nil {
		return err
	}
	defer f.receiver.Close()
	events := w.follow(ctx, u, x, f.began)
	err = w.sample(ctx, u, x, f.began, func(int, time.Duration) int64 {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.bytes
	})
	stop() // sending; what is under way may arrive
	if err := errors.Join(err, <-events); err != nil {
		return err
	}
	if err := pause(context.WithoutCancel(ctx), 500*time.Millisecond); err != nil {
		return err
	}
	if err := w.ask(context.WithoutCancel(ctx), u, x, f.began); err != nil {
		return err
	}
	x.UDP = f.figures(u.warm, u.length)
	x.Mbit = float64(x.UDP.Sent-x.UDP.Lost) * bondDatagram * 8 / 1e6 / x.Seconds
	_, x.Latency = f.curve(len(x.Curve), sampleEvery)
	for i := range x.Events {
		until := u.length
		if i+1 < len(x.Events) {
			until = time.Duration(x.Events[i+1].At * float64(time.Second))
		}
		d := f.disturbance(time.Duration(x.Events[i].At*float64(time.Second)), until)
		x.Events[i].Disturbance = &d
	}
	d := f.disturbance(u.warm, u.length)
	x.StallMS = d.GapMS
	return nil
}

// sample looks at everything ten times a second until the unit's time is over.
func (w *bondWorld) sample(ctx context.Context, u *bondUnit, x *BondRun, began time.Time, look func(step int, now time.Duration) int64) error {
	links, err := w.carried(u)
	if err != nil {
		return err
	}
	first := links
	x.ByLink = make([][]int, len(u.links))
	var before int64
	last := began
	for step := 0; step < int(u.length/sampleEvery); step++ {
		if err := pause(ctx, time.Until(began.Add(time.Duration(step+1)*sampleEvery))); err != nil {
			return err
		}
		now := time.Now()
		took := now.Sub(last).Seconds()
		last = now
		got := look(step, now.Sub(began))
		x.Curve = append(x.Curve, round(float64(got-before)*8/1e6/took))
		before = got
		carried, err := w.carried(u)
		if err != nil {
			return err
		}
		for k := range carried {
			x.ByLink[k] = append(x.ByLink[k], int(float64(carried[k].Bytes-links[k].Bytes)*8/1e3/took))
		}
		links = carried
		if now.Sub(began) < u.warm {
			first = links
		}
	}
	for k := range links {
		x.Carried = append(x.Carried, links[k].Bytes-first[k].Bytes)
		x.Dropped = append(x.Dropped, links[k].Overflowed-first[k].Overflowed)
	}
	return nil
}

// round keeps three places, which is what a figure over time is worth.
func round(v float64) float64 { return float64(int64(v*1000+0.5)) / 1000 }

// follow does what the unit's script says, and tells when it is over.
func (w *bondWorld) follow(ctx context.Context, u *bondUnit, x *BondRun, began time.Time) <-chan error {
	ended := make(chan error, 1)
	if len(u.script) == 0 {
		ended <- nil
		return ended
	}
	go func() {
		var err error
		for _, e := range u.script {
			if err = pause(ctx, time.Until(began.Add(e.at))); err != nil {
				break
			}
			h := BondHappens{At: time.Since(began).Seconds(), What: e.what, Link: e.link}
			if e.what == isChanged {
				h.To = e.to.String()
			}
			x.Events = append(x.Events, h)
			if err = w.happen(ctx, e); err != nil {
				break
			}
		}
		ended <- err
	}()
	return ended
}

func (w *bondWorld) happen(ctx context.Context, e bondEvent) (err error) {
	switch e.what {
	case turnsOff, turnsOn:
		for _, n := range w.nodes {
			err = errors.Join(err, setBonding(ctx, map[bondHappening]string{turnsOff: "off"}[e.what], n))
		}
		return err
	}
	leg := &w.legs[e.link]
	switch e.what {
	case goesDark, isLight, goesDarkOut, goesDarkIn:
		return leg.router.SetCut(e.what == goesDark || e.what == goesDarkOut, e.what == goesDark || e.what == goesDarkIn)
	case goesDown:
		return ipBatch(ctx, w.a, "link set "+leg.name+" down")
	case comesUp:
		return ipBatch(ctx, w.a, w.upLines(e.link)...)
	case isChanged:
		leg.spec = e.to
		return leg.router.SetLink(e.to.config())
	}
	return fmt.Errorf("there is no event %q", e.what)
}

// shortBytes is a short transfer: a page with its pictures.
const shortBytes = 256 << 10

// runShort asks for one short transfer after the other on fresh connections, and times each from the dialling on.
func (w *bondWorld) runShort(ctx context.Context, u *bondUnit, x *BondRun) error {
	began := time.Now()
	for n := uint16(0); time.Since(began) < u.length; n++ {
		start := time.Now()
		d := w.dialling(u)
		d.port += 100 + n%1000
		took, err := w.transfer(ctx, d, u.out)
		if err != nil {
			return err
		}
		if start.Sub(began) >= u.warm {
			x.Short = append(x.Short, round(float64(took)/float64(time.Millisecond)))
		}
		// Long enough that queues are empty and paths at rest, as between one click and the next.
		if err := pause(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	slices.Sort(x.Short)
	return nil
}

func (w *bondWorld) transfer(ctx context.Context, d dialling, out bool) (time.Duration, error) {
	start := time.Now()
	a, b, listener, err := w.dial(ctx, d)
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	defer a.Close()
	defer b.Close()
	a.SetLinger(0)
	b.SetLinger(0)
	from, to := a, b
	if !out {
		from, to = b, a
	}
	to.SetReadDeadline(time.Now().Add(20 * time.Second))
	go from.Write(make([]byte, shortBytes))
	if _, err := io.CopyN(io.Discard, to, shortBytes); err != nil {
		return 0, fmt.Errorf("a short transfer: %w", err)
	}
	return time.Since(start), nil
}
