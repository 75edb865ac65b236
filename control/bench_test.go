package control

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft/control/store/storetest"
	"weft/key"
	"weft/wire"
)

// BenchmarkRegistration lets machines in, 64 at a time, each acknowledged when it is on the disk.
func BenchmarkRegistration(b *testing.B) {
	s, _ := serverOn(b, b.TempDir())
	_, token, err := s.CreateKey(b.Context(), KeyRequest{Reusable: true})
	if err != nil {
		b.Fatal(err)
	}
	var serial atomic.Uint64
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			n := serial.Add(1)
			k := [32]byte{0: 9, 8: byte(n), 9: byte(n >> 8), 10: byte(n >> 16)}
			c := &session{s: s, log: s.log}
			c.machine, _ = key.PublicFrom[key.Machine](k[:])
			h := &wire.Hello{Secret: token.Secret[:], Name: "robot"}
			h.NodeKey, _ = key.PublicFrom[key.Node](k[:])
			if err := s.do(context.Background(), func(t *tx) error { return t.admit(c, h) }); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "nodes/s")
}

// crowd registers nodes that have never connected, and stores none of them.
func (s *Server) crowd(nodes int) error {
	_, token, err := s.CreateKey(context.Background(), KeyRequest{Reusable: true})
	if err != nil {
		return err
	}
	return s.do(context.Background(), func(t *tx) error {
		for n := 1; n <= nodes; n++ {
			k := [32]byte{0: 9, 8: byte(n), 9: byte(n >> 8), 10: byte(n >> 16)}
			c := &session{s: s, log: s.log}
			c.machine, _ = key.PublicFrom[key.Machine](k[:])
			h := &wire.Hello{Secret: token.Secret[:], Name: "robot"}
			h.NodeKey, _ = key.PublicFrom[key.Node](k[:])
			if err := t.admit(c, h); err != nil {
				return err
			}
			t.setLive(c.node, nil)
			t.durable, t.after = t.durable[:0], t.after[:0]
		}
		t.netChanged = false
		return nil
	})
}

// populated is a server with a crowd.
func populated(b *testing.B, nodes int) *Server {
	s, err := New(b.Context(), Config{Keys: NewKeys(), Store: new(storetest.Memory), URL: "https://weft.example", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	if err := s.crowd(nodes); err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkChange is the writer's work for a change of one node, which must not grow with the network.
func BenchmarkChange(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			s := populated(b, nodes)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				t := s.begin()
				e, _ := t.nodes.get(uint32(1 + i%nodes))
				next := *e
				next.nat = [2]string{"a", "b"}[i/nodes%2]
				t.putNode(next, false)
				s.publish(t)
			}
		})
	}
}

// BenchmarkWholeMap puts together what a node gets once per connection.
func BenchmarkWholeMap(b *testing.B) {
	for _, nodes := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			snap := populated(b, nodes).now.Load()
			ticket := make([]byte, wire.TicketSize)
			size := snap.mapSize()
			b.SetBytes(int64(size))
			for b.Loop() {
				snap.appendMap(make([]byte, 0, size), 1, ticket)
			}
		})
	}
}

// BenchmarkPolicy sets another policy of 1,000 rules, each time, and tells nobody: what the writer has to do. In "one" it concerns
// the nodes with one of a hundred tags, in "all" every node. In "addresses" 100 rules are about addresses that every node has one of, and in
// "machines" each is about the address of one of a thousand nodes. In "told" it is as in "addresses", and what all nodes would be told is written down, too.
func BenchmarkPolicy(b *testing.B) {
	rule := func(dst string) func(n, i int) string {
		return func(n, i int) string {
			return fmt.Sprintf(`{"action": "accept", "src": ["tag:t%d"], "dst": ["%s:%d"]},`, n%100, dst, 1+(n+i)%60000)
		}
	}
	for name, rule := range map[string]func(n, i int) string{
		"one": rule("tag:t1"), "all": rule("autogroup:tagged"), "addresses": rule("100.64.0.0/10"), "told": rule("100.64.0.0/10"),
		"machines": func(n, i int) string { return rule(fmt.Sprintf("100.64.%d.%d", n/250, 1+n%250))(n, i) },
	} {
		b.Run(name, func(b *testing.B) {
			s := populated(b, 10_000)
			tags := make([]string, 100)
			owners := ""
			for i := range tags {
				tags[i] = fmt.Sprintf("tag:t%d", i)
				owners += fmt.Sprintf("%q: [],", tags[i])
			}
			err := s.do(b.Context(), func(t *tx) error {
				for id, e := range t.nodes.all() {
					next := *e
					next.Tags = []string{tags[id%100]}
					t.putNode(next, false)
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			count := 1000
			if name == "addresses" || name == "told" {
				count = 100
			}
			for i := 0; b.Loop(); i++ {
				var rules strings.Builder
				for n := range count {
					rules.WriteString(rule(n, i))
				}
				a, err := s.SetPolicy(b.Context(), PolicyRequest{Text: fmt.Sprintf(`{"tagOwners": {%s}, "acls": [%s]}`, owners, &rules)})
				if err != nil || len(a.Problems) > 0 {
					b.Fatal(err, a.Problems)
				}
				if name != "told" {
					continue
				}
				var text []byte
				for _, e := range s.now.Load().nodes.all() {
					text = e.rules.appendTo(text[:0], e)
				}
			}
		})
	}
}

// audience is the connected nodes of a server, who count what they hear.
type audience struct {
	s     *Server
	conns []net.Conn
	heard atomic.Int64 // messages since the last reset
	bytes atomic.Int64
	wake  chan struct{}
}

// connect connects the first nodes of a populated server and waits until each has its map.
func (a *audience) connect(b *testing.B, nodes int) {
	a.wake = make(chan struct{}, 1)
	a.heard.Store(0)
	for n := 1; n <= nodes; n++ {
		mine, theirs := pipe()
		a.conns = append(a.conns, mine)
		k := [32]byte{0: 9, 8: byte(n), 9: byte(n >> 8), 10: byte(n >> 16)}
		machine, _ := key.PublicFrom[key.Machine](k[:])
		a.s.strangers.Add(1)
		go a.s.serve(theirs, machine)
		go func() {
			hello := fmt.Sprintf(`{"hello":{"node_key":%q}}`, keyText(k))
			if mine.WriteMessage([]byte(hello)) != nil {
				return
			}
			for {
				m, err := mine.ReadMessage(wire.MaxServerMessage)
				if err != nil {
					return
				}
				if strings.HasPrefix(string(m[:min(len(m), 12)]), `{"welcome"`) {
					continue
				}
				a.bytes.Add(int64(len(m)))
				a.heard.Add(1)
				select {
				case a.wake <- struct{}{}:
				default:
				}
			}
		}()
	}
}

func keyText(k [32]byte) string {
	p, _ := key.PublicFrom[key.Node](k[:])
	return p.String()
}

func (a *audience) wait(n int) {
	for a.heard.Load() < int64(n) {
		<-a.wake
	}
}

func (a *audience) close() {
	for _, c := range a.conns {
		c.Close()
	}
	a.conns = nil
}

// settled waits until nobody has been told anything for a while.
func (a *audience) settled() {
	for before := int64(-1); before != a.heard.Load(); {
		before = a.heard.Load()
		<-time.After(3 * paceMost)
	}
}

// BenchmarkFanOut changes one of 1,000 connected nodes and waits until all have heard.
func BenchmarkFanOut(b *testing.B) {
	const nodes = 1000
	a := &audience{s: populated(b, nodes)}
	a.connect(b, nodes)
	a.wait(nodes)
	a.settled()
	defer a.close()
	var took time.Duration
	for i := 0; b.Loop(); i++ {
		<-time.After(2 * paceLeast) // the pace between two changes is not what is measured
		a.heard.Store(0)
		began := time.Now()
		err := a.s.do(context.Background(), func(t *tx) error {
			e, _ := t.nodes.get(uint32(1 + i%nodes))
			next := *e
			next.nat = fmt.Sprint(i)
			t.putNode(next, false)
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		a.wait(nodes)
		took += time.Since(began)
	}
	b.ReportMetric(float64(took.Microseconds())/float64(b.N)/1000, "ms/change")
	b.ReportMetric(0, "ns/op") // which would count the pause
}

// BenchmarkRestart has 1,000 nodes come back at once to a server that has forgotten what they were told: each gets a
// whole map, and hears of the others.
func BenchmarkRestart(b *testing.B) {
	const nodes = 1000
	a := &audience{s: populated(b, nodes)}
	var bytes int64
	var took time.Duration
	for b.Loop() {
		a.bytes.Store(0)
		began := time.Now()
		a.connect(b, nodes)
		a.wait(nodes)
		took += time.Since(began)
		bytes += a.bytes.Load()
		a.close()
		for len(a.sessions()) > 0 {
			<-time.After(10 * time.Millisecond)
		}
		err := a.s.do(context.Background(), func(t *tx) error {
			for id := range t.nodes.all() {
				e, _ := t.nodes.get(id)
				next := *e
				next.online = false
				t.putNode(next, false)
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(bytes)/float64(b.N)/nodes, "B/node")
	b.ReportMetric(float64(took.Microseconds())/float64(b.N)/1000, "ms/restart")
	b.ReportMetric(0, "ns/op") // which would count the way back
}

func (a *audience) sessions() map[*session]struct{} {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	out := make(map[*session]struct{}, len(a.s.sessions))
	for c := range a.s.sessions {
		out[c] = struct{}{}
	}
	return out
}
