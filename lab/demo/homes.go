package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/node"
)

// Ports of the story's own servers on the node there.
const (
	pagePort   = 80
	streamPort = 7001
	echoPort   = 7002
	callPort   = 7003
)

// iperfSeconds is how long each phase is loaded. TCP needs the first tenths to find the rate.
const iperfSeconds = 2

// village is the public network with two homes, and what runs in it.
type village struct {
	*scene
	lab                 *netns.Lab
	server, laptop, nas *netns.Host
	homeA, homeB        *netns.Router
	overlay, here4      netip.Addr // of the node there, and of the one here
	up                  time.Time  // when both nodes knew each other
	stream              *stream
	call                *call
	phases              []phase
	changes             [][2]int // marks of the call around each change of path
}

// homes tells the whole story in network namespaces.
func (s *scene) homes(ctx context.Context) (err error) {
	if err := need("curl", "iperf3"); err != nil {
		return err
	}
	v := &village{scene: s}
	if v.lab, err = netns.New(ctx, "weftdemo"); err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			s.postMortem()
		}
		if s.left = v.lab.Close(); s.left == nil {
			s.say("cleaned up: programs, namespaces, files")
		}
	}()
	s.dir = v.lab.Dir()
	story, cancel := context.WithTimeoutCause(ctx, storyLimit, fmt.Errorf("the story took longer than %v", storyLimit))
	defer cancel()
	for _, step := range []func(context.Context) error{
		v.layOut, v.startServer, v.startNodes, v.fetchPage, v.startStream,
		v.goDirect, v.cutPath, v.cutUDP, v.restore, v.sumUp, v.govern,
	} {
		if err := step(story); err != nil {
			return err
		}
	}
	s.linger(ctx,
		"ip netns exec "+v.laptop.Namespace()+" "+s.binary+" --socket "+s.socket(hereName)+" status",
		"ip netns exec "+v.laptop.Namespace()+" curl http://"+fqdn(thereName)+"/",
		"ip netns exec "+v.homeA.Namespace()+" nft list ruleset")
	return nil
}

func (v *village) layOut(context.Context) (err error) {
	home := func(router, name string) (r *netns.Router, h *netns.Host) {
		if err == nil {
			r, err = v.lab.AddRouter(router, netns.PortRestrictedCone)
		}
		if err == nil {
			h, err = r.AddHost(name)
		}
		return r, h
	}
	v.server, err = v.lab.AddHost("server")
	v.homeA, v.laptop = home("home-a", hereName)
	v.homeB, v.nas = home("home-b", thereName)
	if err != nil {
		return err
	}
	v.say("laid out: a public network %v with the server at %v", v.lab.Public().Prefix(), v.server.Addr())
	v.say("  home A: %s %v behind the port-restricted NAT %v", hereName, v.laptop.Addr(), v.homeA.Addr())
	v.say("  home B: %s %v behind the port-restricted NAT %v", thereName, v.nas.Addr(), v.homeB.Addr())
	return nil
}

func (v *village) start(ctx context.Context, h *netns.Host, args ...string) error {
	p, err := h.Start(h.Command(ctx, v.binary, args...))
	if err == nil {
		v.processes = append(v.processes, p)
	}
	return err
}

func (s *scene) socket(name string) string { return filepath.Join(s.dir, name+".sock") }

func (v *village) startServer(ctx context.Context) error {
	return v.start(ctx, v.server, "server", "--data", filepath.Join(v.dir, "server"), "--url", "https://"+v.server.Addr().String())
}

func (v *village) startNodes(ctx context.Context) error {
	token, err := v.tokenFile(ctx, v.server.Run, filepath.Join(v.dir, "server"))
	if err != nil {
		return err
	}
	v.say("the server is up and has made a join key")
	started := time.Now()
	for _, h := range []*netns.Host{v.laptop, v.nas} {
		err := v.start(ctx, h, "node", "--state", filepath.Join(v.dir, h.Name), "--socket", v.socket(h.Name), "--name", h.Name, "--token", token)
		if err != nil {
			return err
		}
	}
	v.here = node.NewClient(v.socket(hereName))
	var p weft.PeerStatus
	err = v.wait(ctx, "both nodes to have joined", func() (err error) {
		if p, err = v.peer(ctx); err == nil && (len(p.Addrs) == 0 || p.Path == weft.PathNone) {
			err = fmt.Errorf("%s has no path to %s yet", hereName, thereName)
		}
		return err
	})
	if err != nil {
		return err
	}
	v.overlay = p.Addrs[slices.IndexFunc(p.Addrs, netip.Addr.Is4)]
	status, err := v.here.Status(ctx)
	if err != nil {
		return err
	}
	v.here4 = status.Self.Addrs[slices.IndexFunc(status.Self.Addrs, netip.Addr.Is4)]
	v.up = time.Now()
	v.say("both nodes are up after %s; %s is %v", span(v.up.Sub(started)), thereName, v.overlay)
	return nil
}

// fetchPage serves a page in one home and fetches it by name in the other.
func (v *village) fetchPage(ctx context.Context) error {
	l, err := v.listen(pagePort)
	if err != nil {
		return err
	}
	content := servePage(l, thereName)
	var got string
	var took time.Duration
	err = v.wait(ctx, "the page of "+fqdn(thereName), func() (err error) {
		began := time.Now()
		got, err = v.laptop.Run(ctx, "curl", "-sS", "--fail", "--max-time", "5", "http://"+fqdn(thereName)+"/")
		took = time.Since(began)
		return err
	})
	if err != nil {
		return err
	}
	if got != content {
		return fmt.Errorf("curl got %q from %s, and the page is %q", got, thereName, content)
	}
	p, err := v.peer(ctx)
	if err != nil {
		return err
	}
	v.say("on %s: curl http://%s/ -> \"Hello from %s\", %d bytes in %s, %s after both were up (path now: %s)",
		hereName, fqdn(thereName), thereName, len(got), span(took), span(time.Since(v.up)), p.Method)
	return nil
}

func (v *village) listen(port uint16) (net.Listener, error) {
	l, err := v.nas.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	if err != nil {
		return nil, fmt.Errorf("serving on %s: %w", thereName, err)
	}
	return l, nil
}

func (v *village) dial(ctx context.Context, port uint16) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	c, err := v.laptop.DialContext(ctx, "tcp", netip.AddrPortFrom(v.overlay, port).String())
	if err != nil {
		return nil, fmt.Errorf("connecting from %s to %s: %w", hereName, thereName, err)
	}
	return c.(*net.TCPConn), nil
}

// startStream opens the connection that lives through everything, and the servers for measuring.
func (v *village) startStream(ctx context.Context) error {
	l, err := v.listen(streamPort)
	if err != nil {
		return err
	}
	defer l.Close()
	from, err := v.dial(ctx, streamPort)
	if err != nil {
		return err
	}
	to, err := l.Accept()
	if err != nil {
		return err
	}
	v.stream = startStream(from, to.(*net.TCPConn))
	ear, err := v.nas.ListenUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), callPort))
	if err != nil {
		return err
	}
	mouth, err := v.laptop.DialContext(ctx, "udp", netip.AddrPortFrom(v.overlay, callPort).String())
	if err != nil {
		return err
	}
	v.call = startCall(mouth, ear)
	v.say("one TCP connection (%d numbered blocks a second) and one UDP call (%d packets) begin, and live through all that follows",
		time.Second/blockEvery, time.Second/callEvery)

	echo, err := v.listen(echoPort)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	iperf, err := v.nas.Start(v.nas.Command(ctx, "iperf3", "-s"))
	if err != nil {
		return err
	}
	v.processes = append(v.processes, iperf)
	return nil
}

func (v *village) goDirect(ctx context.Context) error {
	p, err := v.reach(ctx, weft.Direct)
	if err != nil {
		return err
	}
	after := time.Duration(p.DirectAfterMS * float64(time.Millisecond))
	v.say("direct, %s after both nodes were up: home NAT to home NAT, %s", span(after), p.Endpoint)
	out, err := v.laptop.Run(ctx, v.binary, "--socket", v.socket(hereName), "status")
	if err != nil {
		return err
	}
	v.say("on %s: weft status", hereName)
	v.quote(out)
	return v.measure(ctx, "both joined", weft.Direct, after, 0)
}

func (v *village) cutPath(ctx context.Context) error {
	v.say("CUT: home A's router drops UDP between the two homes")
	return v.change(ctx, "UDP cut between the homes", weft.RelayUDP, func() error {
		return v.homeA.BlockUDPBetween(v.laptop.Addr(), v.homeB.Addr())
	})
}

func (v *village) cutUDP(ctx context.Context) error {
	v.say("CUT: home A's router drops all UDP")
	return v.change(ctx, "all UDP of home A cut", weft.RelayStream, v.homeA.BlockUDP)
}

func (v *village) restore(ctx context.Context) error {
	v.say("RESTORED: home A's router lets UDP pass again")
	return v.change(ctx, "UDP restored", weft.Direct, v.homeA.Unblock)
}

// change does something to the network, waits until the path has followed, and measures.
func (v *village) change(ctx context.Context, what string, method weft.Method, do func() error) error {
	if _, err := v.stream.look(); err != nil {
		return fmt.Errorf("the long-lived connection broke: %w", err)
	}
	began, mark := time.Now(), v.call.mark()
	if err := do(); err != nil {
		return err
	}
	if _, err := v.reach(ctx, method); err != nil {
		return err
	}
	return v.measure(ctx, what, method, time.Since(began), mark)
}

// measure takes the figures of one phase, while the path must not change. mark is where the call was
// when the change began.
func (v *village) measure(ctx context.Context, what string, method weft.Method, after time.Duration, mark int) error {
	moved, err := v.settle(ctx)
	if err != nil {
		return fmt.Errorf("the long-lived connection did not survive: %w", err)
	}
	row := phase{What: what, Path: method.String(), After: after, Stall: moved.Longest}
	v.changes = append(v.changes, [2]int{mark, v.call.mark()})
	if row.RTT, err = v.roundTrip(ctx); err != nil {
		return err
	}
	if row.Mbit, err = v.throughput(ctx); err != nil {
		return err
	}
	p, err := v.peer(ctx)
	if err != nil {
		return err
	}
	if p.Method != method {
		return fmt.Errorf("the path changed from %s to %s while it was measured: %s", method, p.Method, p.Reason)
	}
	v.phases = append(v.phases, row)
	v.say("%s after %s: RTT %s, iperf3 %s; the TCP connection lives, its longest stall was %s", row.Path, span(row.After), span(row.RTT), rate(row.Mbit), span(row.Stall))
	return nil
}

// settle waits until the long-lived connection moves on the path that is in use now, and returns
// what happened to it since the last look. The path may be there before TCP tries again.
func (v *village) settle(ctx context.Context) (total window, err error) {
	total, broken := v.stream.look()
	err = v.wait(ctx, "the long-lived connection to go on", func() error {
		var w window
		w, broken = v.stream.look()
		total.Blocks, total.Longest = total.Blocks+w.Blocks, max(total.Longest, w.Longest)
		if broken == nil && w.Blocks == 0 {
			return errors.New("it stalls")
		}
		return nil
	})
	return total, errors.Join(err, broken)
}

// roundTrip is the median time of one byte to the other node and back, over TCP.
func (v *village) roundTrip(ctx context.Context) (time.Duration, error) {
	c, err := v.dial(ctx, echoPort)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(stepLimit))
	times := make([]time.Duration, 31)
	for i := range times {
		began := time.Now()
		if _, err := c.Write([]byte{1}); err != nil {
			return 0, fmt.Errorf("measuring the round trip: %w", err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return 0, fmt.Errorf("measuring the round trip: %w", err)
		}
		times[i] = time.Since(began)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// throughput is what one TCP flow of iperf3 reaches, in Mbit/s.
func (v *village) throughput(ctx context.Context) (float64, error) {
	out, runErr := v.laptop.Run(ctx, "iperf3", "-c", fqdn(thereName), "-t", fmt.Sprint(iperfSeconds), "--connect-timeout", "5000", "-J")
	mbit, err := parseIperf(out)
	if err != nil {
		return 0, errors.Join(err, runErr)
	}
	return mbit, runErr
}

// parseIperf reads the report of iperf3 -J.
func parseIperf(report string) (mbit float64, err error) {
	var doc struct {
		Error string
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(report), &doc); err != nil {
		return 0, fmt.Errorf("iperf3's report cannot be read: %w", err)
	}
	if doc.Error != "" {
		return 0, fmt.Errorf("iperf3: %s", doc.Error)
	}
	if doc.End.Received.BitsPerSecond == 0 {
		return 0, errors.New("iperf3 moved nothing")
	}
	return doc.End.Received.BitsPerSecond / 1e6, nil
}

func (v *village) sumUp(context.Context) error {
	sent, lost, err := v.stream.finish(stepLimit)
	v.call.finish()
	if err != nil {
		return fmt.Errorf("the long-lived connection broke: %w", err)
	}
	if lost > 0 {
		return fmt.Errorf("the long-lived connection lost %d of %d blocks", lost, sent)
	}
	changing := 0
	for i, c := range v.changes {
		v.phases[i].Sent, v.phases[i].Lost = c[1]-c[0], v.call.lost(c[0], c[1])
		changing += v.phases[i].Lost
	}
	spoken := v.call.mark()
	v.print("\n")
	v.table(v.phases)
	v.print("\n  One TCP connection lived through all of it: %d blocks sent, %d lost, none out of order.\n", sent, lost)
	v.print("  One UDP call did too: %d packets sent, %d lost while paths changed, %d while iperf3 filled the path.\n", spoken, changing, v.call.lost(0, spoken)-changing)
	v.print("  (after: until the path was in use. TCP stalled, UDP lost: of these two, until both went on.)\n\n")
	return nil
}
