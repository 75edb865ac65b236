package portmap

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft/host"
)

var testExternal = netip.MustParseAddr("198.51.100.7")

// fakes counts routers: each has a loopback address of its own.
var fakes atomic.Uint32

// fake is a router on loopback that says what a test wants.
type fake struct {
	t    testing.TB
	addr netip.Addr
	udp  *net.UDPConn

	mu   sync.Mutex
	seen [][]byte // what came by PCP and NAT-PMP
}

func newFake(t testing.TB) *fake {
	n := fakes.Add(1)
	return &fake{t: t, addr: netip.AddrFrom4([4]byte{127, 77, byte(n >> 8), byte(n)})}
}

func (f *fake) gateway() host.Gateway {
	g := host.Gateway{Addr: f.addr, Local: netip.MustParseAddr("127.0.0.1"), Interface: "lo"}
	if lo, err := net.InterfaceByName("lo"); err == nil {
		g.Index = lo.Index
	}
	return g
}

func (f *fake) listen(port uint16) *net.UDPConn {
	f.t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(f.addr, port)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

// answers has the router answer what comes to the port of PCP and NAT-PMP.
func (f *fake) answers(answer func(request []byte) [][]byte) {
	f.udp = f.listen(serverPort)
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := f.udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			f.mu.Lock()
			f.seen = append(f.seen, append([]byte(nil), buf[:n]...))
			f.mu.Unlock()
			for _, b := range answer(append([]byte(nil), buf[:n]...)) {
				f.udp.WriteToUDPAddrPort(b, from)
			}
		}
	}()
}

func (f *fake) requests() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([][]byte(nil), f.seen...)
}

// mapOf makes the answer to a PCP MAP request.
func mapOf(request []byte, change func(answer []byte)) []byte {
	b := append([]byte(nil), request...)
	b[1] |= pcpAnswer
	clear(b[8:24])
	ip := testExternal.As16()
	copy(b[44:], ip[:])
	if change != nil {
		change(b)
	}
	return b
}

// addressOf and portOf make NAT-PMP's answers.
func addressOf(external netip.Addr, epoch uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, natpmpAnswer, 0, 0}, epoch)
	ip := external.As4()
	return append(b, ip[:]...)
}

func portOf(request []byte, epoch uint32, change func(answer []byte)) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0, natpmpAnswer + opMapUDP, 0, 0}, epoch)
	b = append(b, request[4:12]...)
	if change != nil {
		change(b)
	}
	return b
}

// searchable has the router answer UPnP searches with a location.
func (f *fake) searchable(location string) {
	c := f.listen(ssdpPort)
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if strings.HasPrefix(string(buf[:n]), "M-SEARCH * HTTP/1.1\r\n") {
				c.WriteToUDPAddrPort([]byte("HTTP/1.1 200 OK\r\nST: x\r\nLocation: "+location+"\r\nEXT:\r\n\r\n"), from)
			}
		}
	}()
}

// serve serves HTTP at an address, and returns where.
func serve(t testing.TB, at netip.Addr, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp4", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String()
}

// device is the UPnP side of a fake router.
type device struct {
	mu       sync.Mutex
	kind     string            // of its service
	control  string            // URL in the description
	base     string            // URLBase, if any
	actions  []string          // that came
	entries  map[string]string // external port to client:port
	external string
	lease    string // of the last mapping
	fault    func(action string, args map[string]string) int
	lies     bool // it says yes to a mapping, and keeps what it had
}

// upnp has the router speak UPnP.
func (f *fake) upnp(change func(*device)) *device {
	d := &device{
		kind: wanServices[1], control: "/control", external: testExternal.String(), entries: map[string]string{},
		fault: func(string, map[string]string) int { return 0 },
	}
	if change != nil {
		change(d)
	}
	at := serve(f.t, f.addr, d)
	f.searchable(at + "/description.xml")
	return d
}

func (d *device) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.URL.Path == "/description.xml" {
		base := ""
		if d.base != "" {
			base = "<URLBase>" + d.base + "</URLBase>"
		}
		fmt.Fprintf(w, `<?xml version="1.0" encoding="iso-8859-1"?><root xmlns="urn:schemas-upnp-org:device-1-0">%s<device>
<serviceList><service><serviceType>urn:schemas-upnp-org:service:Layer3Forwarding:1</serviceType><controlURL>/l3f</controlURL></service></serviceList>
<deviceList><device><deviceList><device><serviceList><service><serviceType>%s</serviceType><controlURL>%s</controlURL></service></serviceList></device></deviceList></device></deviceList>
</device></root>`, base, d.kind, d.control)
		return
	}
	action := strings.Trim(strings.TrimPrefix(strings.Join(r.Header["Soapaction"], ""), `"`+d.kind+"#"), `"`)
	d.actions = append(d.actions, action)
	body := make([]byte, maxSOAP)
	n, _ := r.Body.Read(body)
	args := map[string]string{}
	if err := walk(body[:n], func(path []string, value string) error { args[path[len(path)-1]] = value; return nil }); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	code := d.fault(action, args)
	var out string
	port, client := args["NewExternalPort"], args["NewInternalClient"]+":"+args["NewInternalPort"]
	switch {
	case code != 0:
	case action == "GetExternalIPAddress":
		out = "<NewExternalIPAddress>" + d.external + "</NewExternalIPAddress>"
	case action == "GetSpecificPortMappingEntry":
		has, ok := d.entries[port]
		if code = faultNoSuchEntry; ok {
			ip, p, _ := strings.Cut(has, ":")
			code, out = 0, "<NewInternalPort>"+p+"</NewInternalPort><NewInternalClient>"+ip+"</NewInternalClient>"
		}
	case action == "AddPortMapping":
		d.lease = args["NewLeaseDuration"]
		if !d.lies {
			d.entries[port] = client
		}
	case action == "DeletePortMapping":
		delete(d.entries, port)
	}
	if code != 0 {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, `<s:Envelope xmlns:s="x"><s:Body><s:Fault><faultcode>s:Client</faultcode><detail><UPnPError><errorCode>%d</errorCode><errorDescription>no</errorDescription></UPnPError></detail></s:Fault></s:Body></s:Envelope>`, code)
		return
	}
	fmt.Fprintf(w, `<s:Envelope xmlns:s="x"><s:Body><u:%sResponse xmlns:u="y">%s</u:%[1]sResponse></s:Body></s:Envelope>`, action, out)
}

func (d *device) did() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.actions...)
}

// quick is a timing for fakes, which answer at once.
func quick() timing {
	t := defaultTiming
	t.answer, t.search, t.request, t.first, t.gap, t.check = 60*time.Millisecond, 300*time.Millisecond, 2*time.Second, 50*time.Millisecond, time.Millisecond, time.Hour
	return t
}

// watched is a client that runs, and its states.
type watched struct {
	*Client
	t      testing.TB
	states chan []State
	stop   func() // ends it and waits
}

// start runs a client with the gateways of fakes.
func start(t testing.TB, change func(*Client), routers ...*fake) *watched {
	w := &watched{t: t, states: make(chan []State, 1000)}
	w.Client = New(Config{
		Port: 4000, Logger: slog.New(slog.DiscardHandler),
		Changed: func(s []State) { w.states <- s },
		Gateways: func() (list []host.Gateway, err error) {
			for _, f := range routers {
				list = append(list, f.gateway())
			}
			return list, nil
		},
	})
	w.timing = quick()
	if change != nil {
		change(w.Client)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	w.stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(w.stop)
	return w
}

// until waits for states.
func (w *watched) until(what string, ok func([]State) bool) []State {
	w.t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case s := <-w.states:
			if ok(s) {
				return s
			}
		case <-timeout:
			w.t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// settled waits until the one gateway has a mapping or a problem.
func (w *watched) settled() State {
	w.t.Helper()
	return w.until("a mapping or a problem", func(s []State) bool {
		return len(s) == 1 && (s[0].Problem != "" || s[0].Mapping.External.IsValid())
	})[0]
}
