{{/* Names: RELEASE-coordinator-0 …, RELEASE-host-0 … are what processes and their certificates are called. */}}
{{- define "snapline.coordinator" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}-coordinator{{- end }}
{{- define "snapline.host" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}-host{{- end }}

{{/* Labels of the release; a part of it, such as coordinators, by `snapline.part`. */}}
{{- define "snapline.labels" -}}
app.kubernetes.io/name: snapline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "snapline.part" -}}
{{ include "snapline.labels" .top }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* HOST:PORT of every replica, with commas between. */}}
{{- define "snapline.addresses" -}}
{{- $name := include "snapline.coordinator" . -}}
{{- range $n := until (int .Values.coordinators.replicas) }}{{ if $n }},{{ end }}{{ $name }}-{{ $n }}.{{ $name }}:7400{{ end }}
{{- end }}
{{- define "snapline.peers" -}}
{{- $name := include "snapline.coordinator" . -}}
{{- range $n := until (int .Values.coordinators.replicas) }}{{ if $n }},{{ end }}{{ $name }}-{{ $n }}={{ $name }}-{{ $n }}.{{ $name }}:7400{{ end }}
{{- end }}

{{- define "snapline.store" -}}{{ .Values.store | default "/var/lib/snapline/store" }}{{- end }}

{{/* How a process of this role shows who it is, as words for a shell or a list. */}}
{{- define "snapline.trust" -}}
{{- if .top.Values.insecure -}}
--insecure
{{- else -}}
--tls-cert /certificates/{{ .role }}-{{ .name }}.crt --tls-key /certificates/{{ .role }}-{{ .name }}.key --tls-ca /certificates/ca.crt --tls-domain {{ .top.Values.tls.domain }}
{{- end -}}
{{- end }}

{{/* What is the same for all pods. */}}
{{- define "snapline.pod" }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* What is the same for all containers, but for what is run. Alive is not ready: only who is not alive is killed. */}}
{{- define "snapline.container" }}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
startupProbe:
  grpc: {port: 7401, service: alive}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 90
readinessProbe:
  grpc: {port: 7401, service: ready}
  periodSeconds: 5
  timeoutSeconds: 5
{{- with .Values.environmentFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
  - name: POD_NAME
    valueFrom:
      fieldRef: {fieldPath: metadata.name}
  {{- with .Values.environment }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "snapline.mounts" }}
- name: tmp
  mountPath: /tmp
{{- if not .Values.insecure }}
- name: certificates
  mountPath: /certificates
  readOnly: true
{{- end }}
{{- if .Values.storeClaim }}
- name: store
  mountPath: /var/lib/snapline/store
{{- end }}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "snapline.volumes" }}
- name: tmp
  emptyDir: {}
{{- if not .top.Values.insecure }}
- name: certificates
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end }}
{{- if .top.Values.storeClaim }}
- name: store
  persistentVolumeClaim:
    claimName: {{ .top.Values.storeClaim }}
{{- end }}
{{- with .top.Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
