package portmap

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The bytes are laid out by hand from the figures of RFC 6887 (7, 8, 9 and 10) and RFC 6886 (sections 3.2 and 3.3).
func TestRequestsHaveTheBytesThatTheRFCsDraw(t *testing.T) {
	request := mapRequest{
		client: netip.MustParseAddr("192.168.1.2"), nonce: [12]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
		internal: 41641, suggested: netip.AddrPortFrom(netip.Addr{}, 41641), lifetime: 2 * time.Hour,
	}
	renewal := request
	renewal.suggested = netip.MustParseAddrPort("198.51.100.7:50000")
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"PCP MAP": {request.append(nil), `02 01 0000 00001c20 00000000000000000000ffffc0a80102
			0102030405060708090a0b0c 11 000000 a2a9 a2a9 00000000000000000000ffff00000000`},
		"PCP MAP again": {renewal.append(nil), `02 01 0000 00001c20 00000000000000000000ffffc0a80102
			0102030405060708090a0b0c 11 000000 a2a9 c350 00000000000000000000ffffc6336407`},
		"PCP ANNOUNCE":      {appendAnnounce(nil, request.client), `02 00 0000 00000000 00000000000000000000ffffc0a80102`},
		"NAT-PMP map UDP":   {appendMapUDP(nil, 41641, 50000, 2*time.Hour), `00 01 0000 a2a9 c350 00001c20`},
		"NAT-PMP take away": {appendMapUDP(nil, 41641, 0, 0), `00 01 0000 a2a9 0000 00000000`},
	} {
		if want := unhex(t, c.want); !slices.Equal(c.got, want) {
			t.Errorf("%s is\n%x, not\n%x", name, c.got, want)
		}
	}
}

func TestAnswersAreReadAsTheRFCsDrawThem(t *testing.T) {
	m, err := parseMapAnswer(unhex(t, `02 81 00 00 00000e10 00015180 000000000000000000000000
		0102030405060708090a0b0c 11 000000 a2a9 c350 00000000000000000000ffffc6336407`))
	if err != nil || m.lifetime != time.Hour || m.epoch != 86400 || m.nonce[11] != 12 || m.protocol != udp ||
		m.internal != 41641 || m.external != netip.MustParseAddrPort("198.51.100.7:50000") {
		t.Errorf("%+v, %v", m, err)
	}
	// Options behind it are passed over, and a day is the most that is believed.
	m, err = parseMapAnswer(unhex(t, `02 81 00 00 ffffffff 00000001 000000000000000000000000
		0102030405060708090a0b0c 11 000000 a2a9 c350 00000000000000000000ffffc6336407 80000004 00000000`))
	if err != nil || m.lifetime != 24*time.Hour {
		t.Errorf("%+v, %v", m, err)
	}
	a, err := parseAddress(unhex(t, `00 80 0000 00015180 c6336407`))
	if err != nil || a.external != netip.MustParseAddr("198.51.100.7") || a.epoch != 86400 {
		t.Errorf("%+v, %v", a, err)
	}
	p, err := parsePort(unhex(t, `00 81 0000 00015180 a2a9 c350 00000e10`))
	if err != nil || p.internal != 41641 || p.external != 50000 || p.lifetime != time.Hour {
		t.Errorf("%+v, %v", p, err)
	}
	// Refusals may be short.
	if p, err := parsePort(unhex(t, `00 81 0002 00015180`)); err != nil || p.result != natpmpNotAuthorized {
		t.Errorf("%+v, %v", p, err)
	}
	for _, s := range []string{"0080 0000 00000001", "0080 0000 00000001 c6336407 00", "0000", "", "0280 0000 00000001 c6336407"} {
		if a, err := parseAddress(unhex(t, s)); err == nil {
			t.Errorf("%s is read as %+v", s, a)
		}
	}
}

func TestAnnouncementsAreToldFromOtherThings(t *testing.T) {
	for s, want := range map[string]bool{
		`00 80 0000 00000001 c6336407`:                             true,
		`02 80 00 00 00000000 00000001 000000000000000000000000`:   true,
		`02 81 00 00 00000000 00000001 000000000000000000000000`:   false,
		`02 00 00 00 00000000 00000000000000000000ffffc0a80102`:    false, // a request
		`00 81 0000 00000001 a2a9 c350 00000e10`:                   false,
		``:                                                         false,
		`02 80 00 00 00000000 00000001 00000000000000000000000000`: false,
	} {
		if got := announces(unhex(t, s)); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
}

// A router's clock may go faster or slower by a sixteenth, and its answers may come late: it was not restarted. One
// that was is known by that its clock does not show the time that has passed.
func TestARestartIsToldFromABadClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		start := rapid.Float64Range(0, 1e6).Draw(t, "start")
		rate := rapid.Float64Range(15./16+0.001, 16./15-0.004).Draw(t, "rate")
		var e epochs
		at := func() uint32 { return uint32(start + rate*float64(now.Sub(time.Unix(1e9, 0)))/1e9) }
		for range rapid.IntRange(1, 50).Draw(t, "looks") {
			if e.lost(at(), now) {
				t.Fatalf("a router with a clock of rate %v is taken for restarted", rate)
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(t, "later")))
		}
		last := at()
		e.lost(last, now)
		up := rapid.Uint32Range(0, 1000).Draw(t, "up") // seconds since it was restarted
		now = now.Add(time.Duration(up) * time.Second)
		if restarted := e.lost(up, now); !restarted && last > 3+up/8 {
			t.Fatalf("epoch %d, and %d s later %d: not taken for restarted", last, up, up)
		}
	})
}

func TestARouterThatIsHeardForTheFirstTimeWasNotRestarted(t *testing.T) {
	var e epochs
	if e.lost(5, time.Unix(1e9, 0)) {
		t.Error("it is taken for restarted")
	}
	if e.lost(4, time.Unix(1e9, 0)) {
		t.Error("a second that is rounded the other way is a restart")
	}
	if e.lost(5, time.Unix(1e9, 0)); !e.lost(3, time.Unix(1e9, 0)) {
		t.Error("a clock that goes back is not seen")
	}
	if !e.lost(1003, time.Unix(1e9+1, 0)) {
		t.Error("another router, which has run for longer, is not seen")
	}
}

func TestOnlyTheGatewaysOwnPlacesAreGoneTo(t *testing.T) {
	gateway := netip.MustParseAddr("192.168.1.1")
	base, _ := url.Parse("http://192.168.1.1:5000/root.xml")
	for text, want := range map[string]string{
		"/control":                        "http://192.168.1.1:5000/control",
		"control":                         "http://192.168.1.1:5000/control",
		"http://192.168.1.1/x":            "http://192.168.1.1/x",
		"http://192.168.1.1:80/x#y":       "http://192.168.1.1:80/x",
		"//192.168.1.1:81/x":              "http://192.168.1.1:81/x",
		"http://192.168.1.2/":             "",
		"http://192.168.1.1.example/":     "",
		"http://user@192.168.1.1/":        "",
		"http://192.168.1.1@192.168.1.2/": "",
		"//192.168.1.2/x":                 "",
		"https://192.168.1.1/":            "",
		"file:///etc/passwd":              "",
		"gopher://192.168.1.1/":           "",
		"http://[::ffff:192.168.1.1]/":    "",
		"http://0xc0a80101/":              "",
		"http://192.168.1.1:99999999/":    "",
		"http://router/":                  "",
		"http://192.168.1.1\r\nX: y/":     "",
	} {
		u, err := onGateway(text, base, gateway)
		got := ""
		if err == nil {
			got = u.String()
		}
		// A port that there is not is met when it is dialled.
		if got != want && !strings.Contains(text, "99999999") {
			t.Errorf("%q leads to %q, %v; want %q", text, got, err, want)
		}
	}
}

const someDescription = `<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><specVersion><major>1</major></specVersion><URLBase>http://192.168.1.1:80/</URLBase>
<device><deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><deviceList><device><deviceList><device><serviceList>
<service><serviceType>urn:schemas-upnp-org:service:WANPPPConnection:1</serviceType><controlURL>/ppp</controlURL></service>
<service><serviceType> urn:schemas-upnp-org:service:WANIPConnection:1 </serviceType><serviceId>x</serviceId><controlURL>/ip?a=1&amp;b=2</controlURL></service>
<service><serviceType>urn:schemas-upnp-org:service:WANIPv6FirewallControl:1</serviceType><controlURL>/six</controlURL></service>
<service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:2</serviceType></service>
</serviceList></device></deviceList></device></deviceList></device></root>`

func TestTheServicesThatMapPortsAreFoundBestFirst(t *testing.T) {
	got, base, err := parseDescription([]byte(someDescription))
	want := []service{{wanServices[1], "/ip?a=1&b=2"}, {wanServices[2], "/ppp"}}
	if err != nil || !slices.Equal(got, want) || base != "http://192.168.1.1:80/" {
		t.Errorf("%v, %q, %v", got, base, err)
	}
	for _, bad := range []string{
		"<root><device>", strings.Repeat("<a>", maxDepth+1) + strings.Repeat("</a>", maxDepth+1),
		"<root>" + strings.Repeat("<service></service>", maxServices+1) + "</root>",
	} {
		if _, _, err := parseDescription([]byte(bad)); err == nil {
			t.Errorf("%.60q is read", bad)
		}
	}
}

func TestAnActionAndItsAnswerAreReadAsTheyWereWritten(t *testing.T) {
	body := appendSOAP(nil, wanServices[0], "AddPortMapping", []argument{{"NewA", "1"}, {"NewB", "<&>\"'"}})
	got := map[string]string{}
	if err := walk(body, func(path []string, value string) error { got[strings.Join(path, "/")] = value; return nil }); err != nil {
		t.Fatal(err)
	}
	if got["Envelope/Body/AddPortMapping/NewA"] != "1" || got["Envelope/Body/AddPortMapping/NewB"] != "<&>\"'" {
		t.Errorf("%v", got)
	}
	answer := strings.ReplaceAll(string(body), "AddPortMapping", "AddPortMappingResponse")
	args, err := parseSOAP([]byte(answer), "AddPortMapping")
	if err != nil || args["NewA"] != "1" || len(args) != 2 {
		t.Errorf("%v, %v", args, err)
	}
	if _, err := parseSOAP([]byte(answer), "DeletePortMapping"); err == nil {
		t.Error("an answer to something else is taken")
	}
	_, err = parseSOAP([]byte(`<s:Envelope xmlns:s="x"><s:Body><s:Fault><detail><UPnPError><errorCode>725</errorCode></UPnPError></detail></s:Fault></s:Body></s:Envelope>`), "X")
	if f := (fault{}); !errors.As(err, &f) || f.code != faultOnlyPermanent {
		t.Errorf("%v", err)
	}
}

func FuzzAnswersOfPCPAndNATPMP(f *testing.F) {
	for _, s := range []string{
		`02 81 00 00 00000e10 00015180 000000000000000000000000 0102030405060708090a0b0c 11 000000 a2a9 c350 00000000000000000000ffffc6336407`,
		`00 80 0000 00015180 c6336407`, `00 81 0000 00015180 a2a9 c350 00000e10`, `00 81 0002 00015180`, `02 80 00 00 00000000 00000001 000000000000000000000000`,
	} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, errMap := parseMapAnswer(b)
		a, errAddress := parseAddress(b)
		p, errPort := parsePort(b)
		taken := 0
		for _, err := range []error{errMap, errAddress, errPort} {
			if err == nil {
				taken++
			}
		}
		if taken > 1 {
			t.Errorf("%x is read in %d ways", b, taken)
		}
		now := time.Unix(1e9, 0)
		for _, l := range []struct {
			at       netip.AddrPort
			lifetime time.Duration
		}{{m.external, m.lifetime}, {netip.AddrPortFrom(a.external, p.external), p.lifetime}} {
			got, err := defaultTiming.leaseOf(l.at, l.lifetime, now)
			if err != nil {
				continue
			}
			x := got.external
			if x.Port() == 0 || !x.Addr().Is4() || x.Addr().IsUnspecified() || x.Addr().IsMulticast() || x.Addr().IsLoopback() {
				t.Errorf("%x maps %s", b, x)
			}
			if d := got.renew.Sub(now); d <= 0 || d > 12*time.Hour || got.until.Sub(now) > 24*time.Hour {
				t.Errorf("%x is renewed after %v", b, d)
			}
		}
		announces(b)
	})
}

func FuzzSearchAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nST: upnp:rootdevice\r\nLocation: http://192.168.1.1:5000/root.xml\r\n\r\n"))
	f.Add([]byte("NOTIFY * HTTP/1.1\r\nLOCATION: http://192.168.1.1/\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200\nlocation:http://192.168.1.1@192.168.1.2/"))
	gateway := netip.MustParseAddr("192.168.1.1")
	f.Fuzz(func(t *testing.T, b []byte) {
		text, ok := parseSearchAnswer(b)
		if !ok {
			return
		}
		u, err := onGateway(text, nil, gateway)
		if err != nil {
			return
		}
		if a, err := netip.ParseAddr(u.Hostname()); err != nil || a != gateway || u.Scheme != "http" {
			t.Errorf("%q leads to %s", b, u)
		}
	})
}

func FuzzDescription(f *testing.F) {
	f.Add([]byte(someDescription))
	f.Add([]byte("<a></b>"))
	f.Add([]byte(`<?xml version="1.0" encoding="x"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>`))
	f.Fuzz(func(t *testing.T, b []byte) {
		services, _, err := parseDescription(b)
		if len(services) > maxServices || err != nil && services != nil {
			t.Errorf("%d services, %v", len(services), err)
		}
		for _, s := range services {
			if !slices.Contains(wanServices, s.kind) || s.control == "" {
				t.Errorf("%+v", s)
			}
		}
	})
}

func FuzzSOAPAnswer(f *testing.F) {
	f.Add([]byte(`<s:Envelope><s:Body><u:XResponse><NewA>1</NewA></u:XResponse></s:Body></s:Envelope>`))
	f.Add([]byte(`<s:Envelope><s:Body><s:Fault><detail><UPnPError><errorCode>725</errorCode></UPnPError></detail></s:Fault></s:Body></s:Envelope>`))
	f.Fuzz(func(t *testing.T, b []byte) {
		args, err := parseSOAP(b, "X")
		if err != nil && args != nil || len(args) > 32 {
			t.Errorf("%v, %v", args, err)
		}
		for name, v := range args {
			if len(v) > maxValue {
				t.Errorf("%s has %d bytes", name, len(v))
			}
		}
	})
}
