package keepalived

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// settings of checks, which a virtual server has, a real server and a check itself; the innermost
// counts. nil: keepalived's default.
type settings struct {
	delayLoop, connectTimeout, delayBeforeRetry *time.Duration
	retry                                       *int
	virtualhost                                 string
}

// take a keyword, if it is one of them.
func (s *settings) take(c *conversion, target proto.Message, i *item) bool {
	var timer **time.Duration
	switch i.keyword() {
	case "delay_loop":
		timer = &s.delayLoop
	case "connect_timeout":
		timer = &s.connectTimeout
	case "delay_before_retry":
		timer = &s.delayBeforeRetry
	case "retry", "nb_get_retry":
		if retry, ok := number(i.value(1), 0, 1<<20); ok {
			s.retry = &retry
		} else {
			c.note(target, LeftOut, i, "not a number of retries")
		}
		return true
	case "virtualhost":
		s.virtualhost = i.value(1)
		return true
	default:
		return false
	}
	const secondsMax = 1 << 20
	seconds, err := strconv.ParseFloat(i.value(1), 64)
	if err != nil || !(seconds >= 0 && seconds <= secondsMax) {
		c.note(target, LeftOut, i, "not a number of seconds")
		return true
	}
	given := time.Duration(seconds * float64(time.Second))
	*timer = &given
	return true
}

// checker is one of keepalived's while it is converted.
type checker struct {
	*virtualServer
	item     *item
	settings settings
	// Of the server.
	address string
	// As it is written; empty: none is known.
	port string
	// What is its own kind's.
	own []*item
	// Of checks that have no message yet.
	pending []note
	names   []string
}

// remark on the checker: all of its checks have the note.
func (k *checker) remark(kind Kind, at *item, why string, values ...any) {
	k.pending = append(k.pending, note{at.Place, kind, at.what(), fmt.Sprintf(why, values...), nil})
}

// checksOf a checker, by name: most are one, of HTTP one for each URL.
func (v *virtualServer) checksOf(b *backend, at *item, s settings, port string) []string {
	k := &checker{virtualServer: v, item: at, settings: s, address: b.message.Address, port: port}
	for _, i := range at.items {
		if !k.settings.take(v.conversion, b.message, i) && !k.connects(i) {
			k.own = append(k.own, i)
		}
	}
	switch at.keyword() {
	case "HTTP_GET", "SSL_GET":
		k.http()
	case "TCP_CHECK":
		k.others()
		k.add("tcp", &configv1.HealthCheck{Tcp: &configv1.TcpCheck{Port: k.portNumber()}})
	case "SMTP_CHECK":
		k.smtp()
	case "DNS_CHECK":
		k.dns()
	case "UDP_CHECK":
		k.udp()
	case "PING_CHECK":
		k.others()
		k.port = ""
		k.add("ping", &configv1.HealthCheck{Icmp: &configv1.IcmpCheck{}})
	}
	if len(k.names) == 0 { // no check has them
		for _, n := range k.pending {
			n.target = b.message
			k.notes = append(k.notes, n)
		}
	}
	return k.names
}

// connects takes the keywords that say where to: always to the server itself.
func (k *checker) connects(i *item) bool {
	switch i.keyword() {
	case "connect_ip":
		if i.value(1) != k.address {
			k.remark(LeftOut, i, "the server itself is probed, and no other address")
		}
	case "connect_port":
		k.port = i.value(1)
	default:
		return false
	}
	return true
}

// others are all keywords of its own but these.
func (k *checker) others(taken ...string) {
	for _, i := range k.own {
		if !slices.Contains(taken, i.keyword()) {
			kind, why := fate(i)
			k.remark(kind, i, "%s", why)
		}
	}
}

// portNumber is 0 where no port is: Settle then leaves the check out.
func (k *checker) portNumber() uint32 {
	port, _ := number(k.port, 1, 65535)
	return uint32(port)
}

func (k *checker) http() {
	k.others("url", "enable_sni", "sni_name")
	var urls, names []*item
	for _, i := range k.own {
		switch i.keyword() {
		case "url":
			urls = append(urls, i)
		case "sni_name":
			names = append(names, i)
		}
	}
	if len(urls) == 0 {
		k.remark(LeftOut, k.item, "it has no url")
	}
	shared := k.pending
	for _, i := range urls {
		k.pending = slices.Clone(shared)
		request := k.url(i)
		if k.item.keyword() == "HTTP_GET" {
			k.add("http", &configv1.HealthCheck{Http: request})
			continue
		}
		tls := &configv1.Tls{Verify: proto.Bool(false)}
		if len(names) > 0 {
			tls.ServerName = proto.String(names[0].value(1))
		}
		k.remark(Differs, k.item, "`verify: false`, as keepalived accepts any certificate: give `ca_file` to have it verified")
		k.add("https", &configv1.HealthCheck{Https: &configv1.HttpsCheck{
			Port: request.Port, Path: request.Path, Host: request.Host, Status: request.Status, Body: request.Body,
			Headers: request.Headers, Tls: tls,
		}})
	}
}

// url is a request and what its answer must be.
func (k *checker) url(block *item) *configv1.HttpCheck {
	request := &configv1.HttpCheck{Port: k.portNumber()}
	host := k.settings.virtualhost
	isSearched := true
	var pattern, user, password *item
	for _, i := range block.items {
		switch i.keyword() {
		case "path":
			request.Path = proto.String(i.value(1))
		case "virtualhost":
			host = i.value(1)
		case "status_code":
			request.Status = k.statuses(i)
		case "regex":
			pattern = i
		case "regex_no_match":
			isSearched = false
		case "username":
			user = i
		case "password":
			password = i
		default:
			kind, why := fate(i)
			k.remark(kind, i, "%s", why)
		}
	}
	if host != "" {
		request.Host = &host
	}
	if user != nil && password != nil {
		k.remark(Differs, password, "it is in a header of the check: keep the configuration private")
		login := base64.StdEncoding.EncodeToString([]byte(user.value(1) + ":" + password.value(1)))
		request.Headers = []string{"Authorization: Basic " + login}
	}
	if request.Status == nil { // as keepalived's default
		request.Status = statusRange(200, 299)
	}
	if pattern != nil {
		if text := pattern.value(1); isSearched && text != "" && regexp.QuoteMeta(text) == text {
			request.Body = &text
		} else {
			k.remark(LeftOut, pattern, "bodies are not matched by patterns: give a text that must be there as `body`")
		}
	}
	return request
}

// statuses of numbers and ranges.
func (k *checker) statuses(i *item) (codes []uint32) {
	for _, text := range i.words[1:] {
		low, high, isRange := strings.Cut(text, "-")
		if !isRange {
			high = low
		}
		first, ok := number(low, 100, 599)
		last, lastOK := number(high, 100, 599)
		switch {
		case !ok || !lastOK:
			k.remark(LeftOut, i, "%s is no status", quote(text))
		case isRange:
			codes = append(codes, statusRange(first, last)...)
		default:
			codes = append(codes, uint32(first))
		}
	}
	return codes
}

// statusRange has those that mean something: a hundred numbers would not be read.
func statusRange(first, last int) (codes []uint32) {
	for code := first; code <= last; code++ {
		if http.StatusText(code) != "" {
			codes = append(codes, uint32(code))
		}
	}
	return codes
}

// smtp is a server's greeting.
func (k *checker) smtp() {
	k.others("helo_name", "host")
	for _, i := range k.own {
		if i.keyword() == "host" {
			k.smtpHost(i)
		}
	}
	if k.port == "" {
		k.port = "25"
	}
	k.remark(Differs, k.item, "only the server's greeting is checked, no HELO is sent")
	k.add("smtp", &configv1.HealthCheck{Tcp: &configv1.TcpCheck{Port: k.portNumber(), ExpectRegex: proto.String("^220[ -]")}})
}

// smtpHost is the server, where it says so, or another address that is probed as well.
func (k *checker) smtpHost(host *item) {
	isOther := slices.ContainsFunc(host.items, func(i *item) bool { return i.keyword() == "connect_ip" && i.value(1) != k.address })
	if isOther {
		k.remark(LeftOut, host, "the server itself is probed, and no other address")
		return
	}
	for _, i := range host.items {
		if !k.connects(i) {
			kind, why := fate(i)
			k.remark(kind, i, "%s", why)
		}
	}
}

func (k *checker) dns() {
	k.others("type", "name")
	if k.port == "" {
		k.port = "53"
	}
	port := k.portNumber()
	check := &configv1.DnsCheck{Name: ".", Type: proto.String("SOA"), Port: &port}
	for _, i := range k.own {
		switch i.keyword() {
		case "type":
			check.Type = proto.String(strings.ToUpper(i.value(1)))
		case "name":
			check.Name = i.value(1)
		}
	}
	k.add("dns", &configv1.HealthCheck{Dns: check})
}

func (k *checker) udp() {
	k.others("payload", "require_reply")
	check := &configv1.UdpCheck{Port: k.portNumber()}
	wantsReply := false
	for _, i := range k.own {
		switch i.keyword() {
		case "payload":
			if digits, ok := hexadecimal(i.words[1:]); ok && digits != "" {
				check.PayloadHex = &digits
			} else {
				k.remark(LeftOut, i, "not hexadecimal")
			}
		case "require_reply":
			wantsReply = true
			digits, ok := hexadecimal(i.words[1:])
			if !ok {
				k.remark(LeftOut, i, "not hexadecimal throughout: any answer passes")
			} else if digits != "" {
				check.AnswerHex = &digits
			}
		}
	}
	if !wantsReply {
		k.pending = nil
		k.remark(LeftOut, k.item, "without require_reply only an ICMP error fails it; a `udp` check needs an answer")
		return
	}
	k.add("udp", &configv1.HealthCheck{Udp: check})
}

// hexadecimal of words, in each of which two digits are a byte and one that is left is a byte too.
func hexadecimal(words []string) (digits string, ok bool) {
	for _, word := range words {
		if len(word)%2 == 1 {
			word = word[:len(word)-1] + "0" + word[len(word)-1:]
		}
		digits += strings.ToLower(word)
	}
	return digits, strings.Trim(digits, "0123456789abcdef") == ""
}

// add a check, unless there is one that is the same.
func (k *checker) add(name string, check *configv1.HealthCheck) {
	k.schedule(check)
	if isTunnelled := len(k.ports) == 0 || slices.Contains(k.ports, k.port); !isTunnelled && check.Icmp == nil {
		check.Via = proto.String("direct") // the server may not listen there on the VIP
	}
	content := contentOf(check)
	known := k.checks[content]
	if known == nil {
		known = check
		if k.port != "" {
			name += "-" + k.port
		}
		known.Name = k.unique("check", name)
		k.checks[content] = known
		k.origins[known] = k.item
		k.Config.HealthChecks = append(k.Config.HealthChecks, known)
	}
	for _, n := range k.pending {
		n.target = known
		k.notes = append(k.notes, n)
	}
	k.names = append(k.names, known.Name)
}

// schedule so that a server which dies is found as soon as keepalived finds it: that waits for
// delay_loop, and then retries after another time; ours probes at one interval.
func (k *checker) schedule(check *configv1.HealthCheck) {
	loop, retry, pause := time.Minute, 1, time.Second
	switch k.item.keyword() {
	case "HTTP_GET", "SSL_GET":
		pause = 3 * time.Second
	case "DNS_CHECK":
		retry = 3
	}
	if k.settings.delayLoop != nil {
		loop = *k.settings.delayLoop
	}
	if k.item.keyword() == "DNS_CHECK" {
		pause = loop
	}
	if k.settings.retry != nil {
		retry = *k.settings.retry
	}
	if k.settings.delayBeforeRetry != nil {
		pause = *k.settings.delayBeforeRetry
	}
	fall := min(retry+1, 100)
	interval := (loop + time.Duration(fall-1)*pause) / time.Duration(fall)
	interval = min(max(interval.Round(100*time.Millisecond), 100*time.Millisecond), 10*time.Minute)
	timeout := 5 * time.Second
	if k.settings.connectTimeout != nil {
		timeout = *k.settings.connectTimeout
	}
	wanted := timeout
	timeout = max(min(timeout, interval, time.Minute).Round(time.Millisecond), 10*time.Millisecond)
	check.Interval, check.Timeout = durationpb.New(interval), durationpb.New(timeout)
	check.Rise, check.Fall = proto.Uint32(1), proto.Uint32(uint32(fall))
	if interval != loop {
		k.remark(Differs, k.item, "one interval for all probes: failed servers are found as quickly as by delay_loop %gs, retry %d and delay_before_retry %gs", loop.Seconds(), retry, pause.Seconds())
	}
	if timeout < wanted && k.settings.connectTimeout != nil {
		k.remark(Differs, k.item, "a probe ends before the next one begins: the timeout is shorter than connect_timeout")
	}
}

// isOn of a keyword that may have a word for yes or no.
func isOn(i *item) bool {
	return !slices.Contains([]string{"off", "false", "no"}, i.value(1))
}
