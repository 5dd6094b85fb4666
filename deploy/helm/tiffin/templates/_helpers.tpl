{{- define "tiffin.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tiffin.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "tiffin.secret" -}}
{{- if .Values.token.existingSecret -}}
{{ .Values.token.existingSecret }}
{{- else -}}
{{ include "tiffin.name" . }}-token
{{- end -}}
{{- end -}}

{{- define "tiffin.labels" -}}
app.kubernetes.io/name: tiffin
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "tiffin.security" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAsUser }}
runAsGroup: {{ .Values.runAsUser }}
fsGroup: {{ .Values.runAsUser }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}
