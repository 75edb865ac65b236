package interop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"weft/lab/guest"
	"weft/lab/netns"
	"weft/lab/vnet"
)

// bad is what each machine's link does in the tests of this file; a packet crosses two. Some packets are 9 ms late, and up to
// a dozen others overtake them.
var bad = vnet.LinkConfig{Delay: 5 * time.Millisecond, Jitter: 2 * time.Millisecond, Loss: 0.01, Reorder: 0.02}

// Rekey-After-Time (section 6.1 of WireGuard's paper): who began a session begins the next after this long.
const rekeyAfter = 2 * time.Minute

// A trip is the traffic of a test over bad links between machines that move.
type trip struct {
	duration time.Duration
	every    time.Duration // one machine moves, in turn
	rate     int64         // of each connection, in bytes a second
	pause    time.Duration // between datagrams
	least    float64       // the share of datagrams that must come back
}

// An outcome is what became of a meeting on a trip.
type outcome struct {
	*meeting
	heard    []heard
	sessions map[time.Time]bool // by when the engine's handshake was over
	err      error
}

// run talks in all meetings at once, and moves machines meanwhile.
func (r trip) run(t *testing.T, w *world, meetings []*meeting) []outcome {
	t.Helper()
	list := make([]outcome, len(meetings))
	var wg sync.WaitGroup
	for i, x := range meetings {
		o := &list[i]
		o.meeting, o.sessions = x, map[time.Time]bool{}
		from, to := w.ours, x.theirs
		if !x.weBegin {
			from, to = x.peer, x.ours
		}
		seconds := int64(r.duration / time.Second)
		wg.Go(func() {
			o.heard, o.err = hold(t.Context(), from, talk{
				To: to.addrs(), Bytes: r.rate * seconds, Rate: r.rate, Datagrams: int(r.duration / r.pause), Pause: r.pause,
			})
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()

	movers := []kind{w.ours}
	for _, name := range slices.Sorted(maps.Keys(w.theirs)) {
		// Debian's stays where it is: see the test of how it is found again.
		if name != "debian" {
			movers = append(movers, w.theirs[name])
		}
	}
	move, look := time.NewTicker(r.every), time.NewTicker(time.Second)
	defer move.Stop()
	defer look.Stop()
	for moves, began := 0, time.Now(); ; {
		select {
		case <-done:
			return list
		case <-move.C:
			// The last part is for those that have to find each other again.
			if time.Since(began) < r.duration-r.every/2 {
				movers[moves%len(movers)].move(t, moves/len(movers))
				moves++
			}
		case <-look.C:
			for _, o := range list {
				if s, err := w.ours.state(o.ours); err != nil {
					t.Error(err)
				} else if !s.Handshake.IsZero() {
					o.sessions[s.Handshake] = true
				}
			}
		}
	}
}

// judge says what is wrong with an outcome. Lost datagrams are part of it: by two links there and back, and while the other
// end's new address is not known.
func (r trip) judge(o outcome) (wrong []string) {
	if o.err != nil {
		return []string{o.err.Error()}
	}
	for _, h := range o.heard {
		sent := int(r.duration / r.pause)
		switch {
		case h.Wrong != "":
			wrong = append(wrong, fmt.Sprintf("%s: %s", h.To, h.Wrong))
		case h.Bytes != r.rate*int64(r.duration/time.Second), float64(h.Datagrams) < r.least*float64(sent), h.Twice > 0:
			wrong = append(wrong, fmt.Sprintf("%s: %+v of %d datagrams", h.To, h, sent))
		}
	}
	if want := int(r.duration / rekeyAfter); len(o.sessions) < want {
		wrong = append(wrong, fmt.Sprintf("there were %d sessions, not %d", len(o.sessions), want))
	}
	return wrong
}

func TestTrafficGoesOnOverBadLinksAndWhileBothEndsMove(t *testing.T) {
	w := newWorld(t, bad, "library")
	w.keepalive = time.Second
	var meetings []*meeting
	for _, weBegin := range []bool{true, false} {
		meetings = append(meetings, w.meet(t, "library", weBegin, !weBegin, weBegin))
	}
	r := trip{duration: 5 * time.Second, every: 1200 * time.Millisecond, rate: 50_000, pause: 20 * time.Millisecond, least: 0.5}
	for _, o := range r.run(t, w, meetings) {
		for _, wrong := range r.judge(o) {
			t.Errorf("%s, %s: %s", o.name, wayName(o.weBegin, o.six, o.weBegin), wrong)
		}
		s, err := w.ours.state(o.ours)
		if before := netip.AddrPortFrom(o.peer.addr(o.six), o.theirs.Port); err != nil || !s.Endpoint.IsValid() || s.Endpoint == before {
			t.Errorf("the engine knows the other by %v, %v, which it has left", s.Endpoint, err)
		}
	}
}

func TestTenMinutesOfTrafficWithEveryWireGuard(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("WEFT_INTEROP"))
	if err != nil {
		t.Skip("it takes ten minutes: run make test-interop")
	}
	names := []string{"library", "debian"}
	if err := guest.Available(); err == nil {
		names = append(names, "kernel")
	} else {
		t.Log("without the kernel's: ", err)
	}
	w := newWorld(t, bad, names...)
	w.keepalive = 2 * time.Second
	var meetings []*meeting
	for _, name := range names {
		// Of role, family and PSK, every two in all combinations.
		for i := range 4 {
			weBegin, six := i&1 == 0, i&2 != 0
			meetings = append(meetings, w.meet(t, name, weBegin, six, weBegin != six))
		}
	}
	r := trip{duration: length, every: 40 * time.Second, rate: 20_000, pause: 50 * time.Millisecond, least: 0.75}
	for _, o := range r.run(t, w, meetings) {
		what := fmt.Sprintf("%-7s %s", o.name, wayName(o.weBegin, o.six, o.weBegin != o.six))
		for _, wrong := range r.judge(o) {
			ours, err1 := w.ours.state(o.ours)
			theirs, err2 := o.peer.state(o.theirs)
			t.Errorf("%s: %s; the engine knows %+v, %v, and the other %+v, %v", what, wrong, ours, err1, theirs, err2)
		}
		for _, h := range o.heard {
			t.Logf("%s: %s echoed %d bytes and %d of %d datagrams, silent for %v at most, %d sessions",
				what, h.To, h.Bytes, h.Datagrams, int(r.duration/r.pause), h.Silence.Round(time.Millisecond), len(o.sessions))
		}
	}
}

// Debian's wireguard-go, of 2022, goes on asking for the IPv4 address that its machine has lost as the source of its datagrams
// (IP_PKTINFO). Linux refuses that with ENETUNREACH, and it leaves the source to the kernel after EINVAL alone (send4 in its
// conn/bind_linux.go): nothing at all comes from it until 15 s have gone by without an answer, when it asks for a new session and
// forgets the source. No peer can do anything about that.
func TestDebiansWireguardGoIsFoundAgainWhereItMoved(t *testing.T) {
	if os.Getenv("WEFT_INTEROP") == "" {
		t.Skip("it takes half a minute: run make test-interop")
	}
	w := newWorld(t, noImpairment, "debian")
	w.keepalive = 2 * time.Second
	for _, six := range []bool{false, true} {
		x := w.meet(t, "debian", false, six, false)
		o := outcome{meeting: x}
		r := talk{To: x.ours.addrs(), Datagrams: 180, Pause: 200 * time.Millisecond} // for 36 s
		done := make(chan struct{})
		go func() {
			defer close(done)
			o.heard, o.err = hold(t.Context(), x.peer, r)
		}()
		eventually(t, "they talk", func() bool { return mustState(t, w.ours, x.ours).Endpoint.IsValid() })
		x.peer.move(t, w.number)
		began := time.Now()
		where := moved(x.peer.addr(six), w.number)
		eventually(t, "the engine sends to where it is now", func() bool { return mustState(t, w.ours, x.ours).Endpoint.Addr() == where })
		t.Logf("IPv6 %v: found again after %v", six, time.Since(began).Round(time.Millisecond))
		<-done
		for _, h := range o.heard {
			if h.Wrong != "" || h.Datagrams < r.Datagrams/3 {
				t.Errorf("IPv6 %v: what %s answers: %+v", six, h.To, h)
			}
		}
		if o.err != nil {
			t.Error(o.err)
		}
	}
}

func mustState(t *testing.T, k kind, n tunnel) state {
	t.Helper()
	return must(k.state(n))(t)
}

// eventually waits for what other programs bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := netns.WaitFor(ctx, what, func() error {
		if ok() {
			return nil
		}
		return errors.New("not yet")
	})
	if err != nil {
		t.Fatal(err)
	}
}
