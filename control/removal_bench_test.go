package control

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"weft"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

// leavers are a network whose nodes are connected by real streams and note when they hear that another has gone.
type leavers struct {
	mu    sync.Mutex
	heard map[weft.NodeID][]time.Time
	told  chan struct{} // has a token when somebody has heard
}

// listen notes what one node hears, until its stream ends.
func (l *leavers) listen(conn *stream.Messages) {
	for {
		m, err := conn.ReadMessage(wire.MaxServerMessage)
		if err != nil {
			return
		}
		now := time.Now()
		if !bytes.Contains(m, []byte(`"remove":`)) {
			continue
		}
		s, err := wire.ParseServerMessage(m)
		if err != nil || s.Change == nil {
			continue
		}
		l.mu.Lock()
		for _, id := range s.Change.Remove {
			l.heard[id] = append(l.heard[id], now)
		}
		l.mu.Unlock()
		select {
		case l.told <- struct{}{}:
		default:
		}
	}
}

func (l *leavers) of(id weft.NodeID) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.heard[id])
}

// BenchmarkRemoval removes nodes from a network of 1,000, one after the other, and waits until all others have heard of it,
// by real streams. It reports how long after the administrator's word that is. More than a second is a failure.
func BenchmarkRemoval(b *testing.B) {
	const nodes = 1000
	s, _ := serverOn(b, b.TempDir())
	mux := http.NewServeMux()
	mux.Handle(wire.ControlPath, s)
	h := httptest.NewServer(mux)
	b.Cleanup(h.Close)
	_, token, err := s.CreateKey(b.Context(), KeyRequest{Reusable: true})
	if err != nil {
		b.Fatal(err)
	}
	l := &leavers{heard: make(map[weft.NodeID][]time.Time), told: make(chan struct{}, 1)}
	var mu sync.Mutex
	var conns []*stream.Messages
	var joining errgroup.Group
	joining.SetLimit(32)
	for range nodes {
		joining.Go(func() error {
			conn, err := stream.DialNoise(b.Context(), stream.Options{URL: h.URL, Path: wire.ControlPath, Proto: wire.ControlProto}, key.NewPrivate[key.Machine](), token.Server)
			if err != nil {
				return err
			}
			hello, err := json.Marshal(wire.NodeMessage{Hello: &wire.Hello{Name: "n", Secret: token.Secret[:], NodeKey: key.NewPrivate[key.Node]().Public()}})
			if err == nil {
				err = conn.WriteMessage(hello)
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			go l.listen(conn)
			return err
		})
	}
	if err := joining.Wait(); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	go func() { // signs of life
		ping, _ := json.Marshal(wire.NodeMessage{Ping: &wire.Beat{N: 1}})
		for tick := time.NewTicker(SilenceTimeout / 3); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
			for _, c := range conns {
				_ = c.WriteMessage(ping)
			}
		}
	}()
	for len(s.Nodes()) < nodes || s.Status().Online < nodes {
		<-time.After(paceLeast)
	}
	<-time.After(10 * paceMost)
	var took []time.Duration
	id := weft.NodeID(0)
	for b.Loop() {
		id++
		<-time.After(2 * paceLeast)
		began := time.Now()
		if err := s.RemoveNode(b.Context(), itoa(id)); err != nil {
			b.Fatal(err)
		}
		for late := time.After(10 * time.Second); len(l.of(id)) < nodes-int(id); {
			select {
			case <-l.told:
			case <-late:
				b.Fatalf("%d of %d have heard after 10 s", len(l.of(id)), nodes-int(id))
			}
		}
		for _, at := range l.of(id) {
			took = append(took, at.Sub(began))
		}
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	p99 := took[len(took)*99/100]
	b.ReportMetric(ms(took[len(took)/2]), "ms-p50")
	b.ReportMetric(ms(p99), "ms-p99")
	b.ReportMetric(ms(took[len(took)-1]), "ms-max")
	b.ReportMetric(0, "ns/op") // which would count the pause
	if p99 > time.Second {
		b.Errorf("a node in a hundred still knows a removed one after %v", p99)
	}
}
