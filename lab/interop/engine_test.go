package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"testing"

	"weft"
	"weft/engine"
	"weft/key"
	"weft/wire"
)

// The node numbers of an engine and its only peer.
const selfID, peerID = 1, 2

// serveEngine is package engine on a TUN interface with one peer that speaks plain WireGuard: the tunnel that the first line of
// standard input tells of, in JSON. It writes a line when it is ready, and one with its state for each further line.
func serveEngine() error {
	var n tunnel
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	if err := in.Decode(&n); err != nil {
		return err
	}
	e, err := newEngine(n)
	if err != nil {
		return err
	}
	defer e.Close()
	for {
		of := e.States()[0]
		if err := out.Encode(state{Endpoint: of.Endpoint, Handshake: of.HandshakeAt}); err != nil {
			return err
		}
		var question struct{}
		switch err := in.Decode(&question); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

func newEngine(n tunnel) (*engine.Engine, error) {
	private, err := key.PrivateFrom[key.Node](n.Private[:])
	if err != nil {
		return nil, err
	}
	peer, err := key.PublicFrom[key.Node](n.Peer[:])
	if err != nil {
		return nil, err
	}
	dev, err := engine.OpenTUN(n.Name, n.MTU)
	if err != nil {
		return nil, err
	}
	e, err := engine.New(engine.Config{
		Key: private, Self: selfID, Device: dev, MTU: n.MTU, Port: n.Port, Handler: nobody{},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		dev.Close()
		return nil, err
	}
	peers := []engine.Peer{{ID: peerID, Key: peer, Allowed: n.Allowed, Plain: true, PSK: n.PSK, Endpoint: n.Endpoint, Keepalive: n.Keepalive}}
	if len(n.Elsewhere) > 0 {
		stranger, err := key.PublicFrom[key.Node](n.Stranger[:])
		if err != nil {
			return nil, err
		}
		peers = append(peers, engine.Peer{ID: peerID + 1, Key: stranger, Allowed: n.Elsewhere, Plain: true})
	}
	if err := e.SetPeers(peers); err != nil {
		e.Close()
		return nil, err
	}
	return e, e.Up()
}

// nobody handles what is not WireGuard: there is nothing.
type nobody struct{}

func (nobody) HandleDatagram(weft.LinkID, netip.AddrPort, wire.Class, []byte) {}
func (nobody) HandleRelayed(weft.Via, weft.NodeID, []byte)                    {}
func (nobody) Active(weft.NodeID)                                             {}
func (nobody) Silent(weft.NodeID, weft.Via, string)                           {}

// ours is weft's engine.
type ours struct {
	machine
	mu   *sync.Mutex
	ends map[string]*engineProcess // by the interface
}

func newOurs(m machine) ours { return ours{m, &sync.Mutex{}, map[string]*engineProcess{}} }

type engineProcess struct {
	in  *json.Encoder
	out *json.Decoder
}

func (o ours) open(t *testing.T, n tunnel) {
	t.Helper()
	cmd := o.Command(context.WithoutCancel(t.Context()), self(), "interop-engine")
	in, out := must(cmd.StdinPipe())(t), must(cmd.StdoutPipe())(t)
	said := must(cmd.StderrPipe())(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			t.Logf("engine %s: %s", n.Name, lines.Text())
		}
	}()
	t.Cleanup(func() {
		in.Close()
		<-logged
		if err := cmd.Wait(); err != nil {
			t.Errorf("the engine of %s: %v", n.Name, err)
		}
	})
	p := &engineProcess{json.NewEncoder(in), json.NewDecoder(out)}
	if err := p.in.Encode(n); err != nil {
		t.Fatal(err)
	}
	var ready state
	if err := p.out.Decode(&ready); err != nil {
		t.Fatalf("the engine of %s does not start: %v", n.Name, err)
	}
	must(o.batch(t.Context(), raise(n)))(t)
	if err := raised(t.Context(), n, o.Run); err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ends[n.Name] = p
}

func (o ours) state(n tunnel) (s state, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.ends[n.Name]
	if err = p.in.Encode(struct{}{}); err == nil {
		err = p.out.Decode(&s)
	}
	return s, err
}

var _ = []kind{ours{}, library{}, debian{}, kernel{}}
